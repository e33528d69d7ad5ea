"""Storage of the paged KV cache on the device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from palladio.model.config import ModelConfig
from palladio.model.sharding import ShardingRules, num_ranks
from palladio.pallas_kernels.ragged_paged_attention import kv_page_shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """Shape of the cache, all but the number of pages.

    Attributes:
        num_layers: one array each.
        num_kv_heads: K.
        head_size: H.
        page_size: tokens a page (S).
        dtype: of keys and values. On CPU prefer float32: XLA:CPU copies a bfloat16 cache at every write.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    page_size: int
    dtype: np.dtype

    @classmethod
    def of(cls, config: ModelConfig, *, page_size: int, dtype: jax.typing.DTypeLike) -> "KVCacheSpec":
        """The cache that a model needs."""
        return cls(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            page_size=page_size,
            dtype=jnp.dtype(dtype),
        )

    @property
    def bytes_per_page(self) -> int:
        """Of all layers and all devices together."""
        return self.num_layers * int(np.prod(self._layer_shape(1))) * self.dtype.itemsize

    def allocate(self, num_pages: int, mesh: Mesh) -> tuple[jax.Array, ...]:
        """[G·P, K, S, 2·Hp] of zeros for each layer, split over the groups and over K.

        Args:
            num_pages: P, of each group. Its page 0 is the scratch page: count it in.
        """
        layer = self._layer(num_pages, mesh)
        zeros = jax.jit(lambda: jnp.zeros(layer.shape, layer.dtype), out_shardings=layer.sharding)
        return tuple(zeros() for _ in range(self.num_layers))

    def abstract(self, num_pages: int, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What `allocate` makes, without the memory."""
        return (self._layer(num_pages, mesh),) * self.num_layers

    def _layer(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        sharding = ShardingRules().sharding(mesh, ("ranks", "kv_heads", None, None))
        return jax.ShapeDtypeStruct(self._layer_shape(num_ranks(mesh) * num_pages), self.dtype, sharding=sharding)

    def _layer_shape(self, num_pages: int) -> tuple[int, int, int, int]:
        return kv_page_shape(num_pages, self.num_kv_heads, self.page_size, self.head_size)
