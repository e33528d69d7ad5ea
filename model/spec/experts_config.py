"""ExpertsConfig: sizes of the sparse layers of a mixture of experts, and the choice of these layers."""

import dataclasses
from typing import Self

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError

MAX_EXPERTS = 4096
MAX_EXPERT_SIZE = 1 << 20  # columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """The names of the sizes of experts in config.json.

    Attributes:
        num_experts: name of the number of experts (E).
        other_name: another name of it.
        other_name_wins: if config.json has the number under both names, the other one counts, as in transformers (its
            attribute_map); else the other name counts only alone.
        intermediate_size: name of the F of each expert.
        shared_intermediate_size: name of the F of the expert that every token goes to; None: there is none.
        num_shared: name of the number of experts of the same F that every token goes to; they are kept as one expert of
            that many times F. None: there is none.
    """

    num_experts: str
    other_name: str
    other_name_wins: bool
    intermediate_size: str
    shared_intermediate_size: str | None = None
    num_shared: str | None = None


MOE_KEYS = ExpertKeys(
    num_experts="n_routed_experts",
    other_name="num_local_experts",
    other_name_wins=True,
    intermediate_size="moe_intermediate_size",
    num_shared="n_shared_experts",
)
"""The key names of DeepSeek, which GLM uses, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Experts that replace the MLP; each token goes to a few of them.

    Attributes:
        num_experts: experts that the router chooses from (E).
        num_places: experts that the stacked weights have room for: more where E does not divide over devices.
        num_chosen: experts that each token goes to (C).
        intermediate_size: F of each expert.
        shared_intermediate_size: F of one more expert, which every token goes to; None: there is none.
    """

    num_experts: int
    num_places: int
    num_chosen: int
    intermediate_size: int
    shared_intermediate_size: int | None

    @classmethod
    def from_hf(cls, keys: Keys, names: ExpertKeys) -> Self:
        """Read config.json.

        Raises:
            ConfigError: a key is missing or does not fit; the message names it.
        """
        has_other, has_own = (keys.values.get(key) is not None for key in (names.other_name, names.num_experts))
        takes_other = has_other and (names.other_name_wins or not has_own)
        name = names.other_name if takes_other else names.num_experts
        num_experts, num_chosen = keys.count(name, most=MAX_EXPERTS), keys.count("num_experts_per_tok")
        if num_chosen > num_experts:
            raise ConfigError(f"num_experts_per_tok {num_chosen} is greater than {name} {num_experts}")
        size = keys.count(names.intermediate_size, most=MAX_EXPERT_SIZE)
        return cls(
            num_experts=num_experts,
            num_places=num_experts,
            num_chosen=num_chosen,
            intermediate_size=size,
            shared_intermediate_size=_shared_size(keys, names, size),
        )


def _shared_size(keys: Keys, names: ExpertKeys, size: int) -> int | None:
    """Read the size of the shared expert.

    Args:
        size: F of an expert.
    """
    if names.shared_intermediate_size is not None:
        return keys.count(names.shared_intermediate_size, most=MAX_EXPERT_SIZE)
    if names.num_shared is None:
        return None
    number = keys.optional_count(names.num_shared, least=0, most=MAX_EXPERTS)
    return number * size if number else None


def first_dense_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts: all from first_k_dense_replace on.

    Raises:
        ConfigError: it is no number of layers.
    """
    first = keys.optional_count("first_k_dense_replace", least=0) or 0
    return tuple(layer >= first for layer in range(num_layers))


def typed_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts, by mlp_layer_types; without it all but the first have.

    Raises:
        ConfigError: it does not name every layer's kind.
    """
    types = keys.values.get("mlp_layer_types")
    if types is None:
        return tuple(layer > 0 for layer in range(num_layers))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(kind not in ("dense", "sparse") for kind in types)
    ):
        raise ConfigError(
            f"mlp_layer_types must list dense or sparse for each of the {num_layers} layers, found {shown(types)}"
        )
    return tuple(kind == "sparse" for kind in types)


def sparse_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts, by decoder_sparse_step and mlp_only_layers; the others have a plain
    MLP.

    Raises:
        ConfigError: one of the two is of another type.
    """
    step = keys.optional_count("decoder_sparse_step", default=1) or 1
    dense = keys.values.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in dense):
        raise ConfigError(f"mlp_only_layers must be a list of layer numbers, found {shown(dense)}")
    plain = frozenset(dense)
    return tuple((layer + 1) % step == 0 and layer not in plain for layer in range(num_layers))
