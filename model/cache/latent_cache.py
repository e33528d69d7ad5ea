"""The cache of layers with latent attention: one row a token, on every device. Pools: model/cache/kv_cache.py."""

import dataclasses
from typing import ClassVar, Self

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.page_spec import PageSpec
from palladio.model.spec.latent_config import LatentConfig
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.kv_cache_update import CacheWrites, plan_writes
from palladio.pallas_kernels.latent_attention import (
    latent_attention,
    latent_cache_update,
    latent_page_shape,
    latent_shape,
    plan_latent_attention,
)
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentCacheSpec(PageSpec):
    """Pages [P, S, W] of latents, laid out as in pallas_kernels/latent_attention/layout.py. Each device of a group has
    all.

    Attributes:
        sizes: sizes of a row's parts.
    """

    AXES: ClassVar = ("ranks", None, None)

    sizes: LatentConfig

    def device_pages(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """Return the shape [P, S, W] of one device."""
        return jax.ShapeDtypeStruct(self._shape(num_pages), self.dtype)

    def _shape(self, num_pages: int) -> tuple[int, ...]:
        return latent_page_shape(num_pages, self.page_size, self.sizes.latent_size, self.sizes.rotated_size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LatentStep:
    """Plan of a step's writes and reads of latents. All layers share it, and one block table."""

    writes: CacheWrites
    metadata: AttentionMetadata

    @classmethod
    def of(cls, batch: ForwardBatch, num_heads: int, dtype: DTypeLike, pages: jax.Array, kernels: Kernels) -> Self:
        """Plan a step.

        Args:
            batch: a batch with one block table.
            num_heads: heads of one device.
            dtype: dtype of activations.
            pages: the cache of any layer; all are alike.
        """
        writes, num_tokens = batch.cache_writes(pages.shape[1]), batch.token_ids.shape[0]
        metadata = batch.attention_metadata()
        shape = latent_shape(num_heads, pages, metadata.block_table, dtype)
        backend, target = kernels.latent_attention, kernels.target
        return cls(
            plan_writes(writes, backend=kernels.cache_update, target=target),
            plan_latent_attention(metadata, num_tokens, shape, backend=backend, target=target),
        )

    def write(self, pages: jax.Array, latent: jax.Array, rotated: jax.Array, kernels: Kernels) -> jax.Array:
        """Write rows: pages [P, S, W], latent [T, L], rotated [T, R] → the pages with the step's rows."""
        backend, target = kernels.cache_update, kernels.target
        return latent_cache_update(pages, latent, rotated, self.writes, backend=backend, target=target)

    def attend(
        self, q_latent: jax.Array, q_rotated: jax.Array, pages: jax.Array, scale: float, kernels: Kernels
    ) -> jax.Array:
        """Attend: q_latent [T, N, L], q_rotated [T, N, R], pages [P, S, W] → [T, N, L]."""
        backend, target = kernels.latent_attention, kernels.target
        return latent_attention(q_latent, q_rotated, pages, self.metadata, scale=scale, backend=backend, target=target)
