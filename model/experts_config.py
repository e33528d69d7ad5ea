"""ExpertsConfig: sizes of the sparse layers of a mixture of experts, and which layers they are."""

import dataclasses
from typing import Literal, Self

from palladio.model.config_keys import Keys, shown
from palladio.model.errors import ConfigError

MAX_EXPERTS = 4096
MAX_EXPERT_SIZE = 1 << 20  # columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """How config.json names the sizes of experts.

    Attributes:
        num_experts: name of their number (E).
        other_name_wins: where config.json has the number under the other of these two names too, that one counts, as in
            transformers (its attribute_map); else the other name counts only alone.
        intermediate_size: name of the F of each.
        shared_intermediate_size: name of the F of the expert that every token goes to; None: there is no such expert.
    """

    num_experts: Literal["num_experts", "num_local_experts"]
    other_name_wins: bool
    intermediate_size: str
    shared_intermediate_size: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Experts in place of the MLP, of which each token goes to a few.

    Attributes:
        num_experts: that the router chooses from (E).
        num_places: experts that the stacked weights have room for: more where E does not divide over devices.
        num_chosen: experts that each token goes to (C).
        intermediate_size: F, of each expert.
        shared_intermediate_size: F of one more expert, which every token goes to, behind a gate of its own; None: there
            is none.
    """

    num_experts: int
    num_places: int
    num_chosen: int
    intermediate_size: int
    shared_intermediate_size: int | None

    @classmethod
    def from_hf(cls, keys: Keys, names: ExpertKeys) -> Self:
        """Reads config.json.

        Raises:
            ConfigError: a key is missing or does not fit; the message names it.
        """
        other_name = "num_local_experts" if names.num_experts == "num_experts" else "num_experts"
        has_other, has_own = (keys.values.get(key) is not None for key in (other_name, names.num_experts))
        takes_other = has_other and (names.other_name_wins or not has_own)
        name = other_name if takes_other else names.num_experts
        num_experts, num_chosen = keys.count(name, most=MAX_EXPERTS), keys.count("num_experts_per_tok")
        if num_chosen > num_experts:
            raise ConfigError(f"num_experts_per_tok {num_chosen} is greater than {name} {num_experts}")
        shared = names.shared_intermediate_size
        return cls(
            num_experts=num_experts,
            num_places=num_experts,
            num_chosen=num_chosen,
            intermediate_size=keys.count(names.intermediate_size, most=MAX_EXPERT_SIZE),
            shared_intermediate_size=None if shared is None else keys.count(shared, most=MAX_EXPERT_SIZE),
        )


def sparse_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """Of each layer, whether it has experts, by decoder_sparse_step and mlp_only_layers; the others have a plain MLP.

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
