"""DeviceState: all that the programs read and update on the device, as arrays or as their shapes."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from palladio.model.kv_cache import KVCacheSpec
from palladio.model.sharding import ShardingRules, num_groups
from palladio.runtime.execution.sampler import MASK_BITS
from palladio.runtime.execution.sampler_state import SamplerState
from palladio.runtime.interface.pooling import Pooling

Weights = tuple[jax.Array, ...]


class DeviceState(NamedTuple):
    """What the programs read and update in place. All but the weights is of each group of devices, one group's rows
    after the other's.

    Attributes:
        weights: of the model, as `flatten_model` orders them.
        kv_cache: one array a layer.
        tables: i32[slots, P], pages of each slot's request.
        sampler: one row a slot; of an engine that makes embeddings only the last tokens, which it never samples.
        pooled: f32[slots, pooled_size], what was pooled of each slot's request so far.
    """

    weights: Weights
    kv_cache: tuple[jax.Array, ...]
    tables: jax.Array
    sampler: SamplerState
    pooled: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceShape:
    """Sizes of one group's state, all but the number of pages.

    Attributes:
        num_slots: requests that run at once, and the scratch slot.
        pages_per_request: columns of the block table.
        vocab_size: columns of the logits.
        num_valid_tokens: ids from here on are padding of the vocabulary.
        num_decode_steps: forward passes of a decode step.
        checks_cache: whether pages will be compared.
        dtype: of hidden states.
        cache: of the KV cache.
        mesh: the devices.
        pooling: how embeddings are made; None: the engine generates text.
        pooled_size: numbers that are kept of each slot's embedding from step to step.
    """

    num_slots: int
    pages_per_request: int
    vocab_size: int
    num_valid_tokens: int
    num_decode_steps: int
    checks_cache: bool
    dtype: DTypeLike
    cache: KVCacheSpec
    mesh: Mesh
    pooling: Pooling | None = None
    pooled_size: int = 0

    @property
    def page_size(self) -> int:
        return self.cache.page_size

    @functools.cached_property
    def num_groups(self) -> int:
        """Groups of devices, each with requests of its own; see `group_programs`."""
        return num_groups(self.mesh)

    @property
    def by_group(self) -> NamedSharding:
        """Of what each group has its part of, along the first axis, and each device of a group all of that."""
        return ShardingRules().sharding(self.mesh, ("groups",))

    @property
    def exchanged(self) -> NamedSharding:
        """Of what goes to and comes from the host: by group; where groups are on different hosts every device has all
        of it, because a host neither gives nor reads a part of an array."""
        is_whole = self.num_groups == 1 or self.mesh.is_multi_process
        return ShardingRules().sharding(self.mesh, () if is_whole else ("groups",))

    @property
    def mask_width(self) -> int:
        """Words of a mask of the vocabulary."""
        return -(-self.vocab_size // MASK_BITS)

    def allocate(self, weights: Weights, num_pages: int) -> DeviceState:
        """The state of an engine in which nothing has run."""
        make = jax.jit(self._slot_state, out_shardings=self._slot_shardings())
        return DeviceState(weights, self.cache.allocate(num_pages, self.mesh), *make())

    def abstract(self, weights: Weights, num_pages: int) -> DeviceState:
        """The same without memory: a ShapeDtypeStruct for each array."""
        tables, sampler, pooled = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(self._slot_state),
            self._slot_shardings(),
        )
        cache: Any = self.cache.abstract(num_pages, self.mesh)
        return DeviceState(weights, cache, tables, sampler, pooled)

    def _slot_state(self) -> tuple[jax.Array, SamplerState, jax.Array]:
        num_slots = self.num_groups * self.num_slots
        tables = jnp.zeros((num_slots, self.pages_per_request), jnp.int32)
        if self.pooling is None:
            sampler = SamplerState.allocate(num_slots, self.vocab_size)
        else:
            sampler = SamplerState.of_last_token(jnp.zeros(num_slots, jnp.int32))
        return tables, sampler, jnp.zeros((num_slots, self.pooled_size))

    def _slot_shardings(self) -> tuple[NamedSharding, SamplerState, NamedSharding]:
        """Of `_slot_state`; what has a column for each token is split over the vocabulary."""
        rows: Any = self.by_group
        by_token: Any = ShardingRules().sharding(self.mesh, ("groups", "vocab")) if self.pooling is None else rows
        sampler = SamplerState(rows, by_token, by_token, rows, rows, rows)
        return rows, sampler, rows


def bytes_per_device(tree: Any) -> int:
    """Of arrays or ShapeDtypeStructs with shardings: what one device holds of them."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * jnp.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )
