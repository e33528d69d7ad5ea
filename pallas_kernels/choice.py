"""Which kernels a model runs on."""

import dataclasses

from palladio.pallas_kernels.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """Attributes:
    attention: backend of ragged_paged_attention; auto: by target.
    target: what they are compiled for.
    """

    attention: str = "auto"
    target: Target = Target()

    @property
    def cache_update(self) -> str:
        """Backend of kv_cache_update: that of the attention, where both ops have one."""
        return "tpu" if self.attention == "tpu" else "auto" if self.attention == "auto" else "xla"
