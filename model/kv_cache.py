"""What layers keep of the tokens before: pages of keys and values on the device, and which layers share block tables.

All layers' pages are of equal bytes and lie in one pool of page numbers. A number stands for one page in each of the
pool's arrays, and at any time it belongs to one block table, so the layers that go by one table use one array each.
Where some layers have a window and others have not, these are groups with tables of their own, and the memory is
divided between them by what requests need, page by page.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.config import ModelConfig
from palladio.model.forward_batch import ForwardBatch
from palladio.model.latent_cache import LatentCacheSpec, LatentStep
from palladio.model.layer_spec import AttentionSpec
from palladio.model.page_spec import PageSpec
from palladio.model.sharding import num_ranks, num_shards
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update, plan_writes
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    AttentionShape,
    kv_page_shape,
    plan_attention,
    ragged_paged_attention,
)

PAGE_SIZES = 16, 32, 64, 128  # tokens; what is chosen from
LEAST_ROW_BYTES = 32  # of a column of a TPU's tile: pages are whole tiles

# Groups that come out uneven leave places of the pool's arrays empty: of a short request's pages at most this share.
# Where it would be more, all layers are one group, and their windows are masks only.
MOST_PADDING = 0.15


class Place(NamedTuple):
    """Where a layer's pages are: by which block table it finds them, and in which array of the pool."""

    table: int
    array: int


@dataclasses.dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens.

    Attributes:
        window: how many tokens, the newest; None: all.
        tables: of each block table of the group, the layers that go by it, numbered from the embedding up.
    """

    window: int | None
    tables: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class CacheGroups:
    """All layers of a model, in groups.

    Attributes:
        groups: the one without a window first, if there is one; it has one table.
    """

    groups: tuple[CacheGroup, ...]

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Args: config: as it serves a context, see `ModelConfig.for_context`."""
        layers: dict[int | None, list[int]] = {}
        for number, layer in enumerate(config.layers):
            layers.setdefault(layer.attention.window, []).append(number)
        size = len(layers[None]) if None in layers else min(map(len, layers.values()))
        num_places = sum(size * -(-len(numbers) // size) for numbers in layers.values())
        if num_places > (1 + MOST_PADDING) * config.num_layers:
            return cls((CacheGroup(None, (tuple(range(config.num_layers)),)),))
        return cls(tuple(_group(window, layers[window], size) for window in sorted(layers, key=lambda w: w or 0)))

    @property
    def tables(self) -> list[tuple[int, ...]]:
        """Of each block table, the layers that go by it."""
        return [layers for group in self.groups for layers in group.tables]

    @property
    def num_tables(self) -> int:
        return sum(len(group.tables) for group in self.groups)

    @property
    def num_arrays(self) -> int:
        """Of the pool."""
        return max(map(len, self.tables))

    @property
    def places(self) -> list[Place]:
        """Of each layer."""
        places = {layer: Place(t, a) for t, layers in enumerate(self.tables) for a, layer in enumerate(layers)}
        return [places[layer] for layer in range(len(places))]


def _group(window: int | None, layers: list[int], size: int) -> CacheGroup:
    return CacheGroup(window, tuple(tuple(layers[begin : begin + size]) for begin in range(0, len(layers), size)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheSpec(PageSpec):
    """Pages [P, K, S, 2·Hp] of keys and values, of attention with grouped queries. Devices of a group share the heads.

    Attributes:
        num_kv_heads: K.
        head_size: H.
    """

    AXES: ClassVar = ("ranks", "kv_heads", None, None)

    num_kv_heads: int
    head_size: int

    def device_pages(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """[P, K, S, 2·Hp], see PageSpec."""
        shape = dataclasses.replace(self, num_kv_heads=self.num_kv_heads // num_shards(mesh))._shape(num_pages)
        return jax.ShapeDtypeStruct(shape, self.dtype)

    def _shape(self, num_pages: int) -> tuple[int, ...]:
        return kv_page_shape(num_pages, self.num_kv_heads, self.page_size, self.head_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The pool of a model's pages, all but their number.

    Attributes:
        spec: a layer's pages; all layers have the same. groups: which layers share tables.
    """

    spec: CacheSpec | LatentCacheSpec
    groups: CacheGroups

    @classmethod
    def of(cls, config: ModelConfig, *, page_size: int, dtype: DTypeLike) -> Self:
        """The cache that a model needs."""
        pages: dict[str, Any] = {"page_size": page_size, "dtype": jnp.dtype(dtype)}
        spec: CacheSpec | LatentCacheSpec
        if config.latent is not None:
            spec = LatentCacheSpec(sizes=config.latent, **pages)
        else:
            spec = CacheSpec(num_kv_heads=config.num_kv_heads, head_size=config.head_size, **pages)
        return cls(spec=spec, groups=CacheGroups.of(config))

    @property
    def bytes_per_page(self) -> int:
        """Of one number in all arrays of the pool, on all devices together."""
        return self.groups.num_arrays * self.spec.bytes_per_page

    def num_pages(self, arrays: tuple[jax.Array, ...], mesh: Mesh) -> int:
        """Of each data-parallel rank, the scratch page included."""
        return arrays[0].shape[0] // num_ranks(mesh)

    def allocate(self, num_pages: int, mesh: Mesh) -> tuple[jax.Array, ...]:
        """The pool's arrays, of zeros.

        Args:
            num_pages: P, of each data-parallel rank. Its page 0 is the scratch page: count it in.
        """
        array = self.spec.array(num_pages, mesh)
        zeros = jax.jit(lambda: jnp.zeros(array.shape, array.dtype), out_shardings=array.sharding)
        return tuple(zeros() for _ in range(self.groups.num_arrays))

    def abstract(self, num_pages: int, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What `allocate` makes, without the memory."""
        return (self.spec.array(num_pages, mesh),) * self.groups.num_arrays


def fitting_page_size(config: ModelConfig, *, dtype: DTypeLike, mesh: Mesh, least_bytes: int) -> int:
    """Tokens of the smallest page that takes so many bytes, of one layer on one device.

    Args:
        least_bytes: 0: of any size; otherwise for kernels that copy whole tiles.
    """
    for size in PAGE_SIZES[:-1]:
        page = CacheLayout.of(config, page_size=size, dtype=dtype).spec.device_pages(1, mesh)
        is_whole = least_bytes == 0 or size * page.dtype.itemsize >= LEAST_ROW_BYTES
        if is_whole and math.prod(page.shape) * page.dtype.itemsize >= least_bytes:
            return size
    return PAGE_SIZES[-1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedStep:
    """How a step writes and reads the pages of one block table: planned once, the same for every layer that uses it."""

    writes: CacheWrites
    metadata: AttentionMetadata

    @classmethod
    def of_tables(
        cls,
        batch: ForwardBatch,
        config: ModelConfig,
        dtype: DTypeLike,
        kv_cache: Iterable[jax.Array],
        kernels: Kernels,
        num_shards: int = 1,
    ) -> list[Self]:
        """One for each block table.

        Args:
            dtype: of activations. kv_cache: the pool's arrays. num_shards: devices that share the heads.
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
        """The same tokens in other pages."""
        metadata = dataclasses.replace(self.metadata, block_table=block_table)
        return dataclasses.replace(self, writes=self.writes.in_pages(page_ids), metadata=metadata)

    def write(self, kv_pages: jax.Array, k: jax.Array, v: jax.Array, kernels: Kernels) -> jax.Array:
        """kv_pages [P, K, S, 2·Hp], k and v [T, K, H] → the pages with the step's keys and values."""
        return kv_cache_update(kv_pages, k, v, self.writes, backend=kernels.cache_update, target=kernels.target)

    def attend(
        self, q: jax.Array, kv_pages: jax.Array, spec: AttentionSpec, kernels: Kernels, sinks: jax.Array | None = None
    ) -> jax.Array:
        """q [T, N, H], kv_pages [P, K, S, 2·Hp], sinks [N] → [T, N, H]."""
        return ragged_paged_attention(
            q,
            kv_pages,
            self.metadata,
            scale=spec.scale,
            sliding_window=spec.window,
            soft_cap=spec.soft_cap,
            sinks=sinks,
            backend=kernels.attention,
            target=kernels.target,
        )


def plan_steps(
    batch: ForwardBatch,
    config: ModelConfig,
    dtype: DTypeLike,
    kv_cache: tuple[jax.Array, ...],
    kernels: Kernels,
    num_shards: int = 1,
) -> list[PagedStep] | list[LatentStep]:
    """How a step writes and reads the pages of each block table; for the arguments see PagedStep.of_tables."""
    if config.latent is not None:
        return [LatentStep.of(batch, config.num_heads // num_shards, dtype, kv_cache[0], kernels)]
    return PagedStep.of_tables(batch, config, dtype, kv_cache, kernels, num_shards)
