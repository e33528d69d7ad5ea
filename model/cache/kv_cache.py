"""The pool of cached tokens: pages of keys and values on the device, or one state for each slot.

Pages of all layers have equal bytes and share one pool of page numbers. A number stands for one page in each of the
pool's arrays and belongs to one block table at any time, so the layers of one table use one array each. Where some
layers have a window and others have not, they form groups with tables of their own, and requests divide the memory
between the groups page by page.

The pool is a tuple with an entry for each array of pages, then one for each layer that keeps states. A step, a reset,
another host and the memory plan take all of it, whatever kinds there are.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.sharding import num_ranks
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.groups import CacheGroups
from palladio.model.cache.latent_cache import LatentCacheSpec, LatentStep
from palladio.model.cache.paged_cache import CacheSpec, PagedStep
from palladio.model.cache.state_cache import StateSpec, StateStep
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.choice import Kernels

PAGE_SIZES = 16, 32, 64, 128  # tokens; what is chosen from
LEAST_ROW_BYTES = 32  # of a column of a TPU's tile: pages are whole tiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The layout of a model's pool, without the number of pages.

    Attributes:
        spec: the pages of a layer; all layers with pages have the same.
        groups: the layers that share tables.
        state: the states of a layer; None: no layer keeps any.
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
        """Choose the layout that a model needs.

        Args:
            dtype: dtype of pages.
            num_slots: state slots of each data-parallel rank, the scratch slot included.
            state_dtype: dtype of tokens in states: that of activations.
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
        """Bytes of one page number in all arrays of the pool, on all devices together."""
        return self.groups.num_arrays * self.spec.bytes_per_page

    def num_pages(self, pool: tuple[Any, ...], mesh: Mesh) -> int:
        """Return the number of pages of each data-parallel rank, the scratch page included; 1: pages hold nothing."""
        if not self.groups.num_arrays:
            return 1
        num_pages: int = jax.tree.leaves(pool[0])[0].shape[0] // num_ranks(mesh)
        return num_pages

    def pages(self, pool: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the entries of pages, which grow with the number of pages."""
        return pool[: self.groups.num_arrays]

    def states(self, pool: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the entries of states, which grow with the number of slots."""
        return pool[self.groups.num_arrays :]

    def allocate(self, num_pages: int, mesh: Mesh) -> tuple[Any, ...]:
        """Allocate the pool, filled with zeros.

        Args:
            num_pages: pages of each data-parallel rank (P), the scratch page 0 included.
        """
        leaves, tree = jax.tree.flatten(self.abstract(num_pages, mesh))
        makers = {one: _zeros(one) for one in dict.fromkeys(leaves)}
        pool: tuple[Any, ...] = jax.tree.unflatten(tree, [makers[one]() for one in leaves])
        return pool

    def abstract(self, num_pages: int, mesh: Mesh) -> tuple[Any, ...]:
        """Return the shapes of `allocate`'s result, without the memory."""
        pages = (self.spec.array(num_pages, mesh),) * self.groups.num_arrays
        return pages if self.state is None else (*pages, *(self.state.arrays(mesh),) * len(self.groups.states))


def _zeros(array: jax.ShapeDtypeStruct) -> Callable[[], jax.Array]:
    make: Callable[[], jax.Array] = jax.jit(lambda: jnp.zeros(array.shape, array.dtype), out_shardings=array.sharding)
    return make


def fitting_page_size(config: ModelConfig, *, dtype: DTypeLike, mesh: Mesh, least_bytes: int) -> int:
    """Return the tokens of the smallest page that takes at least these bytes, for one layer on one device.

    Args:
        least_bytes: 0: any size; otherwise for kernels that copy whole tiles.
    """
    for size in PAGE_SIZES[:-1]:
        page = CacheLayout.of(config, page_size=size, dtype=dtype).spec.device_pages(1, mesh)
        is_whole = least_bytes == 0 or size * page.dtype.itemsize >= LEAST_ROW_BYTES
        if is_whole and math.prod(page.shape) * page.dtype.itemsize >= least_bytes:
            return size
    return PAGE_SIZES[-1]


def plan_steps(
    batch: ForwardBatch,
    config: ModelConfig,
    dtype: DTypeLike,
    kv_cache: tuple[Any, ...],
    kernels: Kernels,
    num_shards: int = 1,
) -> list[PagedStep | LatentStep | StateStep]:
    """Plan how a step writes and reads the pages of each block table, then the states, in the order that Place counts.
    PagedStep.of_tables describes the arguments."""
    steps: list[PagedStep | LatentStep | StateStep] = []
    if config.latent is not None:
        steps.append(LatentStep.of(batch, config.num_heads // num_shards, dtype, kv_cache[0], kernels))
    else:
        steps.extend(PagedStep.of_tables(batch, config, dtype, kv_cache, kernels, num_shards))
    if config.delta is not None:
        steps.append(StateStep.of(batch))
    return steps
