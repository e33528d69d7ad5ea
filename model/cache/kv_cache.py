"""What layers keep of the tokens before: pages of keys and values on the device, and which layers share block tables;
or states, one for each slot.

All layers' pages are of equal bytes and lie in one pool of page numbers. A number stands for one page in each of the
pool's arrays, and at any time it belongs to one block table, so the layers that go by one table use one array each.
Where some layers have a window and others have not, these are groups with tables of their own, and the memory is
divided between them by what requests need, page by page.

The pool is a tuple with an entry for each array of pages, and behind them one for each layer that keeps states: what a
step, a reset, another host and the memory plan take is all of it, whatever kinds there are.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.sharding import ShardingRules, num_ranks, num_shards
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.latent_cache import LatentCacheSpec, LatentStep
from palladio.model.cache.page_spec import PageSpec
from palladio.model.cache.state_cache import StateSpec, StateStep
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

PAGE_SIZES = 16, 32, 64, 128  # tokens; what is chosen from
LEAST_ROW_BYTES = 32  # of a column of a TPU's tile: pages are whole tiles

# Groups that come out uneven leave places of the pool's arrays empty: of a short request's pages at most this share.
# Where it would be more, all layers are one group, and their windows are masks only.
MOST_PADDING = 0.15


CacheScales = tuple[jax.Array, jax.Array] | None
"""What a cache of float8 divides keys and values by, f32[] each; None: by 1."""


class Place(NamedTuple):
    """Where what a layer keeps is: by which of a step's plans it finds it, and in which entry of the pool. Plans are
    those of the block tables, and behind them, if there are states, that of the slots."""

    step: int
    entry: int


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
        groups: of those with pages; the one without a window first, if there is one; it has one table.
        states: layers that keep a state for each slot, and no pages.
    """

    groups: tuple[CacheGroup, ...]
    states: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Args: config: as it serves a context, see `ModelConfig.for_context`."""
        layers: dict[int | None, list[int]] = {}
        states = tuple(number for number, layer in enumerate(config.layers) if layer.keeps_state)
        for number, layer in enumerate(config.layers):
            if not layer.keeps_state:
                layers.setdefault(layer.attention.window, []).append(number)
        size = len(layers[None]) if None in layers else min(map(len, layers.values()))
        num_places = sum(size * -(-len(numbers) // size) for numbers in layers.values())
        paged = tuple(sorted(number for numbers in layers.values() for number in numbers))
        if num_places > (1 + MOST_PADDING) * len(paged):
            return cls((CacheGroup(None, (paged,)),), states)
        groups = (_group(window, layers[window], size) for window in sorted(layers, key=lambda w: w or 0))
        return cls(tuple(groups), states)

    @property
    def tables(self) -> list[tuple[int, ...]]:
        """Of each block table, the layers that go by it."""
        return [layers for group in self.groups for layers in group.tables]

    @property
    def num_tables(self) -> int:
        return sum(len(group.tables) for group in self.groups)

    @property
    def num_arrays(self) -> int:
        """Of pages, in the pool."""
        return max(map(len, self.tables))

    @property
    def places(self) -> list[Place]:
        """Of each layer."""
        places = {layer: Place(t, a) for t, layers in enumerate(self.tables) for a, layer in enumerate(layers)}
        places |= {layer: Place(self.num_tables, self.num_arrays + n) for n, layer in enumerate(self.states)}
        return [places[layer] for layer in range(len(places))]


def _group(window: int | None, layers: list[int], size: int) -> CacheGroup:
    return CacheGroup(window, tuple(tuple(layers[begin : begin + size]) for begin in range(0, len(layers), size)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheSpec(PageSpec):
    """Pages [P, K, S, 2·Hp] of keys and values, of attention with grouped queries. Devices of a group share the heads.
    Pages of int8 have scales beside them, see ScaledPages; each device has those of its heads.

    Attributes:
        num_kv_heads: K.
        head_size: H.
    """

    AXES: ClassVar = ("ranks", "kv_heads", None, None)

    num_kv_heads: int
    head_size: int

    @property
    def bytes_per_page(self) -> int:
        """See PageSpec; with the scales of pages on a single device."""
        scales = math.prod(self._scales(1)) * 4 if self.has_scales else 0
        return super().bytes_per_page + scales

    @property
    def has_scales(self) -> bool:
        """Whether each row has one, for its key and for its value."""
        return bool(self.dtype == jnp.int8)

    def array(self, num_pages: int, mesh: Mesh) -> Any:
        """See PageSpec; ScaledPages of int8."""
        rows: Any = super().array(num_pages, mesh)
        if not self.has_scales:
            return rows
        P, R, L = self._on_a_device(mesh)._scales(num_ranks(mesh) * num_pages)
        sharding = ShardingRules().sharding(mesh, self.AXES[:3])
        scales: Any = jax.ShapeDtypeStruct((P, R * num_shards(mesh), L), jnp.float32, sharding=sharding)
        return ScaledPages(rows, scales)

    def device_pages(self, num_pages: int, mesh: Mesh) -> Any:
        """[P, K, S, 2·Hp], see PageSpec; ScaledPages of int8."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The pool of what a model's layers keep, all but the number of pages.

    Attributes:
        spec: a layer's pages; all layers with pages have the same. groups: which layers share tables.
        state: a layer's states; None: no layer keeps any.
    """

    spec: CacheSpec | LatentCacheSpec
    groups: CacheGroups
    state: StateSpec | None = None

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        *,
        page_size: int,
        dtype: DTypeLike,
        num_slots: int = 1,
        state_dtype: DTypeLike = jnp.float32,
    ) -> Self:
        """The cache that a model needs.

        Args:
            dtype: of pages. num_slots: of states, of each data-parallel rank, the scratch slot included.
            state_dtype: of tokens in states: that of activations.
        """
        pages: dict[str, Any] = {"page_size": page_size, "dtype": jnp.dtype(dtype)}
        spec: CacheSpec | LatentCacheSpec
        if config.latent is not None:
            spec = LatentCacheSpec(sizes=config.latent, **pages)
        else:
            spec = CacheSpec(num_kv_heads=config.num_kv_heads, head_size=config.head_size, **pages)
        state = None
        if config.delta is not None:
            state = StateSpec(sizes=config.delta, dtype=jnp.dtype(state_dtype), num_slots=num_slots)
        return cls(spec=spec, groups=CacheGroups.of(config), state=state)

    @property
    def bytes_per_page(self) -> int:
        """Of one number in all arrays of the pool, on all devices together."""
        return self.groups.num_arrays * self.spec.bytes_per_page

    def num_pages(self, pool: tuple[Any, ...], mesh: Mesh) -> int:
        """Of each data-parallel rank, the scratch page included."""
        num_pages: int = jax.tree.leaves(pool[0])[0].shape[0] // num_ranks(mesh)
        return num_pages

    def pages(self, pool: tuple[Any, ...]) -> tuple[Any, ...]:
        """The entries of pages: what grows with their number."""
        return pool[: self.groups.num_arrays]

    def states(self, pool: tuple[Any, ...]) -> tuple[Any, ...]:
        """The entries of states: what grows with the number of slots."""
        return pool[self.groups.num_arrays :]

    def allocate(self, num_pages: int, mesh: Mesh) -> tuple[Any, ...]:
        """The pool, of zeros.

        Args:
            num_pages: P, of each data-parallel rank. Its page 0 is the scratch page: count it in.
        """
        leaves, tree = jax.tree.flatten(self.abstract(num_pages, mesh))
        makers = {one: _zeros(one) for one in dict.fromkeys(leaves)}
        pool: tuple[Any, ...] = jax.tree.unflatten(tree, [makers[one]() for one in leaves])
        return pool

    def abstract(self, num_pages: int, mesh: Mesh) -> tuple[Any, ...]:
        """What `allocate` makes, without the memory."""
        pages = (self.spec.array(num_pages, mesh),) * self.groups.num_arrays
        return pages if self.state is None else (*pages, *(self.state.arrays(mesh),) * len(self.groups.states))


def _zeros(array: jax.ShapeDtypeStruct) -> Callable[[], jax.Array]:
    make: Callable[[], jax.Array] = jax.jit(lambda: jnp.zeros(array.shape, array.dtype), out_shardings=array.sharding)
    return make


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


def page_values(pages: KVPages, number: jax.Array) -> jax.Array:
    """Keys and values that one page of one array holds, as float32, in any order."""
    if not isinstance(pages, ScaledPages):
        return pages[number].astype(jnp.float32)
    _, K, S, W = pages.shape
    scales = unpack_scales(pages.scales[number][None], K, S)[0].transpose(1, 2, 0)  # [K, S, 2]
    return pages.rows[number].astype(jnp.float32) * jnp.repeat(scales, W // 2, axis=-1)


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
        kv_cache: Iterable[KVPages],
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

    def write(self, kv_pages: KVPages, k: jax.Array, v: jax.Array, kernels: Kernels, scales: CacheScales) -> KVPages:
        """kv_pages [P, K, S, 2·Hp], k and v [T, K, H] → the pages with the step's keys and values."""
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
        """q [T, N, H], kv_pages [P, K, S, 2·Hp], sinks [N] → [T, N, H]."""
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


def plan_steps(
    batch: ForwardBatch,
    config: ModelConfig,
    dtype: DTypeLike,
    kv_cache: tuple[Any, ...],
    kernels: Kernels,
    num_shards: int = 1,
) -> list[PagedStep | LatentStep | StateStep]:
    """How a step writes and reads the pages of each block table, and then the states; see Place. For the arguments see
    PagedStep.of_tables."""
    steps: list[PagedStep | LatentStep | StateStep] = []
    if config.latent is not None:
        steps.append(LatentStep.of(batch, config.num_heads // num_shards, dtype, kv_cache[0], kernels))
    else:
        steps.extend(PagedStep.of_tables(batch, config, dtype, kv_cache, kernels, num_shards))
    if config.delta is not None:
        steps.append(StateStep.of(batch))
    return steps
