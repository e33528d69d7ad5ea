"""The choice of kernels for a model."""

import dataclasses

from palladio.pallas_kernels.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """Backends of a model's ops.

    Attributes:
        attention: backend of ragged_paged_attention, or of latent_attention; auto: by target.
        target: the device that kernels are compiled for.
    """

    attention: str = "auto"
    target: Target = Target()

    @property
    def cache_update(self) -> str:
        """Backend of kv_cache_update: that of the attention, where both ops have one."""
        backend = self.attention if self.attention in ("tpu", "cpu_native", "auto") else "xla"
        return "xla" if self.target.skips("kv_cache_update", backend) else backend

    @property
    def latent_attention(self) -> str:
        """Backend of latent_attention, for models that have it: that of the attention. The op has no backend of its own
        for Hopper GPUs and CPUs."""
        return {"gpu_mosaic": "gpu_triton", "cpu_native": "xla"}.get(self.attention, self.attention)

    @property
    def segment_attention(self) -> str:
        """Backend of segment_attention, in models without a cache: that of the attention. The op has no backend of its
        own for Hopper GPUs and CPUs."""
        return "xla" if self.target.skips("segment_attention", self.latent_attention) else self.latent_attention

    @property
    def grouped_matmul(self) -> str:
        """Backend of grouped_matmul: that of the attention, where both ops have one for groups of any size. That of
        gpu_mosaic takes large groups only, and TPUs have XLA's."""
        has_none = self.attention in ("tpu", "gpu_mosaic", "cpu_native")
        return "auto" if has_none or self.target.skips("grouped_matmul", self.attention) else self.attention

    @property
    def block_matmul(self) -> str:
        """Backend of block_matmul: that of the attention, where both ops have one for any number of rows."""
        named = {"gpu_triton": "gpu_triton", "xla": "reference", "reference": "reference"}
        backend = named.get(self.attention, "auto")
        return "auto" if self.target.skips("block_matmul", backend) else backend
