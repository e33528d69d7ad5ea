"""ExpertsConfig: the sparse layers of a mixture of experts."""

import dataclasses
from typing import Self

from palladio.model.config_keys import Keys, shown
from palladio.model.errors import ConfigError
from palladio.model.family import ExpertKeys

MAX_EXPERTS = 4096
MAX_EXPERT_SIZE = 1 << 20  # columns


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
        renormalize: the weights of a token's experts are divided by their sum.
        sparse_layers: of each layer, whether it has experts; the others have a plain MLP.
    """

    num_experts: int
    num_places: int
    num_chosen: int
    intermediate_size: int
    shared_intermediate_size: int | None
    renormalize: bool
    sparse_layers: tuple[bool, ...]

    @classmethod
    def from_hf(cls, keys: Keys, names: ExpertKeys, num_layers: int) -> Self | None:
        """Reads config.json; None: none of its layers has experts.

        Raises:
            ConfigError: a key is missing or does not fit; the message names it.
        """
        sparse_layers = _sparse_layers(keys, num_layers) if names.dense_layers else (True,) * num_layers
        if not any(sparse_layers):
            return None
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
            renormalize=names.always_renormalized or keys.flag("norm_topk_prob", default=False),
            sparse_layers=sparse_layers,
        )

    @property
    def num_sparse_layers(self) -> int:
        return sum(self.sparse_layers)


def _sparse_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    step = keys.optional_count("decoder_sparse_step", default=1) or 1
    dense = keys.values.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in dense):
        raise ConfigError(f"mlp_only_layers must be a list of layer numbers, found {shown(dense)}")
    plain = frozenset(dense)
    return tuple((layer + 1) % step == 0 and layer not in plain for layer in range(num_layers))
