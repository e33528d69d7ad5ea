"""Pages of keys and values: their layout, and a step's writes and reads."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.sharding import ShardingRules, num_ranks, num_shards
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.page_spec import PageSpec
from palladio.model.config.config import ModelConfig
from palladio.model.spec.layer_spec import AttentionSpec
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update, plan_writes
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    AttentionShape,
    KVPages,
    ScaledPages,
    kv_page_shape,
    plan_attention,
    ragged_paged_attention,
    scale_page_shape,
    unpack_scales,
)

CacheScales = tuple[jax.Array, jax.Array] | None
"""Divisors of keys and values in a float8 cache, f32[] each; None: 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheSpec(PageSpec):
    """Pages [P, K, S, 2·Hp] of keys and values, for grouped-query attention. Devices of a group share the heads. Pages
    of int8 have scales, see ScaledPages; each device has the scales of its heads.

    Attributes:
        num_kv_heads: K.
        head_size: H.
    """

    AXES: ClassVar = ("ranks", "kv_heads", None, None)

    num_kv_heads: int
    head_size: int

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one layer's page as in PageSpec, plus its scales, padded as if one device had all heads."""
        scales = math.prod(self._scales(1)) * 4 if self.has_scales else 0
        return super().bytes_per_page + scales

    @property
    def has_scales(self) -> bool:
        """Whether each row has a scale for its key and one for its value."""
        return bool(self.dtype == jnp.int8)

    def array(self, num_pages: int, mesh: Mesh) -> Any:
        """Return the shape of one layer's array as in PageSpec; ScaledPages if pages are int8."""
        rows: Any = super().array(num_pages, mesh)
        if not self.has_scales:
            return rows
        P, R, L = self._on_a_device(mesh)._scales(num_ranks(mesh) * num_pages)
        sharding = ShardingRules().sharding(mesh, self.AXES[:3])
        scales: Any = jax.ShapeDtypeStruct((P, R * num_shards(mesh), L), jnp.float32, sharding=sharding)
        return ScaledPages(rows, scales)

    def device_pages(self, num_pages: int, mesh: Mesh) -> Any:
        """Return the shape [P, K, S, 2·Hp] of one device; ScaledPages if pages are int8."""
        of_device = self._on_a_device(mesh)
        rows: Any = jax.ShapeDtypeStruct(of_device._shape(num_pages), self.dtype)
        scales: Any = jax.ShapeDtypeStruct(of_device._scales(num_pages), jnp.float32)
        return ScaledPages(rows, scales) if self.has_scales else rows

    def _on_a_device(self, mesh: Mesh) -> Self:
        return dataclasses.replace(self, num_kv_heads=self.num_kv_heads // num_shards(mesh))

    def _scales(self, num_pages: int) -> tuple[int, ...]:
        return scale_page_shape(num_pages, self.num_kv_heads, self.page_size)

    def _shape(self, num_pages: int) -> tuple[int, ...]:
        return kv_page_shape(num_pages, self.num_kv_heads, self.page_size, self.head_size)


def page_values(pages: KVPages, number: jax.Array) -> jax.Array:
    """Return the keys and values of one page of one array, as float32, in any order."""
    if not isinstance(pages, ScaledPages):
        return pages[number].astype(jnp.float32)
    _, K, S, W = pages.shape
    scales = unpack_scales(pages.scales[number][None], K, S)[0].transpose(1, 2, 0)  # [K, S, 2]
    return pages.rows[number].astype(jnp.float32) * jnp.repeat(scales, W // 2, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedStep:
    """Plan of a step's writes and reads for one block table: made once, shared by every layer that uses the table."""

    writes: CacheWrites
    metadata: AttentionMetadata

    @classmethod
    def of_tables(
        cls,
        batch: ForwardBatch,
        config: ModelConfig,
        dtype: DTypeLike,
        kv_cache: Iterable[KVPages],
        kernels: Kernels,
        num_shards: int = 1,
    ) -> list[Self]:
        """Make one plan for each block table.

        Args:
            dtype: dtype of activations.
            kv_cache: the pool's arrays.
            num_shards: devices that share the heads.
        """
        pages = next(iter(kv_cache))  # all are alike
        page_size = pages.shape[2]
        shape = AttentionShape(
            num_heads=config.num_heads // num_shards,
            num_kv_heads=config.num_kv_heads // num_shards,
            head_size=config.head_size,
            page_size=page_size,
            table_width=batch.num_columns,
            num_rows=batch.kv_len.shape[0],
            dtype=dtype,
            kv_dtype=pages.dtype,
        )
        writes = plan_writes(batch.cache_writes(page_size), backend=kernels.cache_update, target=kernels.target)
        metadata = plan_attention(
            batch.attention_metadata(),
            batch.token_ids.shape[0],
            shape,
            backend=kernels.attention,
            target=kernels.target,
        )
        first = cls(writes, metadata)
        others = zip(batch.page_ids[1:], batch.block_tables[1:], strict=True)
        return [first, *(first._by_table(page_ids, block_table) for page_ids, block_table in others)]

    def _by_table(self, page_ids: jax.Array, block_table: jax.Array) -> Self:
        """Return the plan of the same tokens in other pages."""
        metadata = dataclasses.replace(self.metadata, block_table=block_table)
        return dataclasses.replace(self, writes=self.writes.in_pages(page_ids), metadata=metadata)

    def write(self, kv_pages: KVPages, k: jax.Array, v: jax.Array, kernels: Kernels, scales: CacheScales) -> KVPages:
        """Write keys and values: kv_pages [P, K, S, 2·Hp], k and v [T, K, H] → the pages with the step's rows."""
        k_scale, v_scale = scales or (1.0, 1.0)
        return kv_cache_update(
            kv_pages,
            k,
            v,
            self.writes,
            k_scale=k_scale,
            v_scale=v_scale,
            backend=kernels.cache_update,
            target=kernels.target,
        )

    def attend(
        self,
        q: jax.Array,
        kv_pages: KVPages,
        spec: AttentionSpec,
        kernels: Kernels,
        scales: CacheScales,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp], sinks [N] → [T, N, H]."""
        k_scale, v_scale = scales or (1.0, 1.0)
        return ragged_paged_attention(
            q,
            kv_pages,
            self.metadata,
            scale=spec.scale,
            sliding_window=spec.window,
            soft_cap=spec.soft_cap,
            k_scale=k_scale,
            v_scale=v_scale,
            sinks=sinks,
            backend=kernels.attention,
            target=kernels.target,
        )
