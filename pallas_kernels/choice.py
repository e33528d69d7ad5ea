"""Which kernels a model runs on."""

import dataclasses

from palladio.pallas_kernels.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """Attributes:
    attention: backend of ragged_paged_attention, or of latent_attention; auto: by target.
    target: what they are compiled for.
    """

    attention: str = "auto"
    target: Target = Target()

    @property
    def cache_update(self) -> str:
        """Backend of kv_cache_update: that of the attention, where both ops have one."""
        return self.attention if self.attention in ("tpu", "cpu_native", "auto") else "xla"

    @property
    def latent_attention(self) -> str:
        """Backend of latent_attention, of models that have it: that of the attention; for Hopper GPUs and CPUs it has
        none of its own."""
        return {"gpu_mosaic": "gpu_triton", "cpu_native": "xla"}.get(self.attention, self.attention)

    @property
    def grouped_matmul(self) -> str:
        """Backend of grouped_matmul: that of the attention, where both ops have one for any groups. That of gpu_mosaic
        takes large ones only, and TPUs have XLA's."""
        return "auto" if self.attention in ("tpu", "gpu_mosaic", "cpu_native") else self.attention

    @property
    def block_matmul(self) -> str:
        """Backend of block_matmul: that of the attention, where both ops have one for any rows."""
        return {"gpu_triton": "gpu_triton", "xla": "reference", "reference": "reference"}.get(self.attention, "auto")
