"""DeviceState: all that the programs read and update on the device, as arrays or as their shapes; and RankAxis: the one
place where what belongs to each of several data-parallel ranks becomes one array."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from palladio.model.base.sharding import RANK_AXES, RANK_AXIS, ShardingRules, num_ranks, num_shards, only_axes
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.functional import num_bytes
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.pallas_kernels.target import Target
from palladio.runtime.execution.sampling.sampler import MASK_BITS
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.state.proposer import Proposer
from palladio.runtime.scheduling.state.page_groups import PageGroups, SnapshotSlots, WindowGroup
from palladio.runtime.telemetry.process_memory import leave_zeros

HostArray = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class RankAxis:
    """The data-parallel ranks that the devices are.

    With --dp-size G the devices are G ranks, each with all of the weights, and with requests, pages and slots of its
    own. One call of a program serves all of them in lockstep, so they run the same shapes. Nothing crosses the border
    between two ranks: what a rank computes is what one engine on its devices would. So programs are written for one
    rank. With --enable-dp-attention each rank has some of the experts only, and in sparse layers rows go to them and
    back.

    State is laid end to end along the first axis: [G·P, …]. What comes from the host and goes to it is stacked: [G, …].
    With one rank there is neither: arrays are as the program sees them.

    Attributes:
        mesh: the devices. num_ranks: that they are divided into.
    """

    mesh: Mesh
    num_ranks: int

    @classmethod
    def of(cls, mesh: Mesh) -> "RankAxis":
        return cls(mesh, num_ranks(mesh))

    @property
    def state(self) -> NamedSharding:
        """Sharding of per-rank arrays: divided by rank along the first axis, replicated within a rank."""
        return ShardingRules().sharding(self.mesh, ("ranks",))

    @property
    def exchanged(self) -> NamedSharding:
        """Sharding of arrays that go to and come from the host: divided by rank.

        Where ranks are on different hosts every device has the whole array, because a host neither gives nor reads a
        part of an array.
        """
        is_whole = self.num_ranks == 1 or self.mesh.is_multi_process
        return ShardingRules().sharding(self.mesh, () if is_whole else ("ranks",))

    def stack(self, arrays: Sequence[HostArray]) -> HostArray:
        """Arrays of the host, one of each rank, as what programs take."""
        return arrays[0] if self.num_ranks == 1 else np.stack(arrays)

    def repeat(self, array: HostArray) -> HostArray:
        """The same array for each rank."""
        return self.stack([array] * self.num_ranks)

    def only(self, rank: int, array: HostArray) -> HostArray:
        """An array of one rank; the others are given zeros, which mean the scratch slot and the scratch page."""
        if self.num_ranks == 1:
            return array
        stacked = np.zeros((self.num_ranks, *array.shape), array.dtype)
        stacked[rank] = array
        return stacked

    def take(self, rank: int, tree: Any) -> Any:
        """One rank's part of what programs give to the host."""
        return tree if self.num_ranks == 1 else jax.tree.map(lambda array: np.asarray(array)[rank], tree)

    def from_host(self, array: jax.ShapeDtypeStruct) -> Any:
        """What `stack` makes of such arrays. Any: it stands where a jax.Array will."""
        shape = array.shape if self.num_ranks == 1 else (self.num_ranks, *array.shape)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=self.exchanged)

    def over(self, function: Callable[..., Any], *, whole: tuple[Any, ...], num_state: int) -> Callable[..., Any]:
        """A program's function of one rank, as one of all ranks; unchanged where there is but one.

        Args:
            function: its arguments are, in this order, weights, state, and arrays of the host. It returns new state,
                other state, and what goes to the host.
            whole: shapes of the arguments of the first kind, which are the same for all ranks, or split over those
                that have experts in common. num_state: arguments of the second.
        """
        if self.num_ranks == 1:
            return function
        first_from_host = len(whole) + num_state
        of_weights = jax.tree.map(lambda leaf: only_axes(leaf.sharding.spec, (RANK_AXIS,)), whole)

        def of_one_rank(*arguments: Any) -> Any:
            from_host = jax.tree.map(lambda array: array[0], arguments[first_from_host:])
            new, kept, given = function(*arguments[:first_from_host], *from_host)
            return new, kept, jax.tree.map(lambda array: array[None], given)

        def of_all(*arguments: Any) -> Any:
            own = PartitionSpec(RANK_AXES)
            return jax.shard_map(
                of_one_rank,
                mesh=self.mesh,
                in_specs=(*of_weights, *(own,) * (len(arguments) - len(whole))),
                out_specs=own,
                # The compiler goes on splitting over the tensor axis by itself. Where that is one device it has nothing
                # to split, and must not look for it: it can't see into kernels.
                axis_names=set(RANK_AXES) if num_shards(self.mesh) > 1 else frozenset(self.mesh.axis_names),
                check_vma=False,  # a Pallas call does not say over which axes its result varies
            )(*arguments)

        return of_all


LEAST_SAVED = 128  # tokens: a snapshot that saves less than this is not worth a step of its own

Weights = tuple[jax.Array, ...]


class SlotInputs(NamedTuple):
    """The tokens that the next step of each slot's request computes.

    Attributes:
        last_token: i32[slots], the one that it sampled last.
        drafts: i32[slots, K], those that may come next; None: nothing is proposed. num_drafts: i32[slots], how many.
    """

    last_token: jax.Array
    drafts: jax.Array | None
    num_drafts: jax.Array | None


class DeviceState(NamedTuple):
    """What the programs read and update in place. All but the weights is of each data-parallel rank, see RankAxis.

    Attributes:
        weights: of the model, as `flatten_model` orders them.
        kv_cache: the pool of what layers keep, pages and states; see CacheLayout.
        tables: i32[slots, G·C], pages of each slot's request: the C columns of each of the G block tables.
        lengths: i32[slots], tokens of each slot's request whose keys and values are in the cache, for certain.
        sampler: one row a slot; of an engine that makes embeddings only the last tokens, which it never samples.
        pooled: f32[slots, pooled_size], what was pooled of each slot's request so far.
        embeds: [num_embeds, D], rows that stand in the place of token embeddings in the next step.
        page_tokens: i32[P, S], the tokens whose keys and values are on each page of the first block table: so a prefix
            that is found in the cache comes with its tokens. None where nothing is proposed, like the next two.
        drafts, num_drafts: see SlotInputs.
        head: those of the weights that make logits.
        last_hidden: [R, D] by R: of the last tokens of a step's first rows, as its forward pass hands them on.
        hidden: [T, D] by T: of all tokens of that step.
        all_allowed: i32[R, mask_width] by R: masks that allow everything.
        pooling_weights: the tensors of the steps after pooling, see PoolingSpec.
    """

    weights: Weights
    kv_cache: tuple[Any, ...]
    tables: jax.Array
    lengths: jax.Array
    sampler: SamplerState
    pooled: jax.Array
    embeds: jax.Array
    page_tokens: jax.Array | None = None
    drafts: jax.Array | None = None
    num_drafts: jax.Array | None = None
    head: Weights = ()
    last_hidden: Mapping[int, jax.Array] = {}
    hidden: Mapping[int, jax.Array] = {}
    all_allowed: Mapping[int, jax.Array] = {}
    pooling_weights: Weights = ()

    @property
    def of_requests(self) -> tuple[Any, ...]:
        """What holds something of requests from step to step; a step that failed leaves it undefined."""
        drafting = self.page_tokens, self.drafts, self.num_drafts
        return self.kv_cache, self.tables, self.lengths, self.sampler, self.pooled, self.embeds, *drafting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceShape:
    """Sizes of one data-parallel rank's state, all but the number of pages.

    Attributes:
        num_slots: requests that run at once, and the scratch slot.
        num_columns: columns of each block table (C).
        vocab_size: columns of the logits.
        num_valid_tokens: ids from here on are padding of the vocabulary.
        num_decode_steps: forward passes of a decode step.
        joined_passes: the most forward passes of a decode step that a program of `joined_rows` computes.
        checks_cache: whether pages will be compared.
        dtype: the dtype of hidden states.
        cache: the layout of the KV cache.
        mesh: the devices. target: their kind, for the compiler options of programs.
        pooling: how embeddings are made; None: the engine generates text.
        pooled_size: numbers that are kept of each slot's embedding from step to step.
        proposer: proposes drafts; None: there are none.
        has_plain_tier: whether steps without top_k, top_p and min_p have programs of their own; see PlatformDefaults.
        joined_rows: decode steps of at most this many rows have programs that sample as well; see PlatformDefaults.
        num_embeds: rows of embeddings that a step may bring, see DeviceState; 0: prompts are of token ids alone.
        hidden_size: numbers of a row (D).
        num_snapshots: copies of states, in slots behind those of requests. snapshot_interval: see SnapshotSlots.
    """

    num_slots: int
    num_columns: int
    vocab_size: int
    num_valid_tokens: int
    num_decode_steps: int
    checks_cache: bool
    dtype: DTypeLike
    cache: CacheLayout
    mesh: Mesh
    target: Target = Target()
    pooling: PoolingSpec | None = None
    pooled_size: int = 0
    proposer: Proposer | None = None
    has_plain_tier: bool = False
    joined_rows: int = 0
    joined_passes: int = 1
    num_embeds: int = 0
    hidden_size: int = 0
    num_snapshots: int = 0
    snapshot_interval: int = 0

    @property
    def page_size(self) -> int:
        return self.cache.spec.page_size

    @property
    def num_tables(self) -> int:
        """Block tables (G)."""
        return self.cache.groups.num_tables

    @property
    def page_groups(self) -> PageGroups:
        """Which block tables requests have pages for."""
        first, *others = groups = self.cache.groups.groups
        keeps_all = first.window is None
        windows, number = [], int(keeps_all)
        for group in others if keeps_all else groups:
            assert group.window is not None, "one group at most keeps all tokens"
            tables = tuple(range(number, number + len(group.tables)))
            windows.append(WindowGroup(group.window, self.page_size, tables))
            number += len(tables)
        has_states = self.cache.state is not None
        snapshots = None
        if self.num_snapshots:
            least = max(self.page_size, min(LEAST_SAVED, self.snapshot_interval))
            snapshots = SnapshotSlots(self.num_slots, self.num_snapshots, self.snapshot_interval, least)
        return PageGroups(self.page_size, self.num_columns, keeps_all, tuple(windows), has_states, snapshots)

    @functools.cached_property
    def ranks(self) -> RankAxis:
        return RankAxis.of(self.mesh)

    @property
    def mask_width(self) -> int:
        """Words of a mask of the vocabulary."""
        return -(-self.vocab_size // MASK_BITS)

    def allocate(self, weights: Weights, num_pages: int, pooling_weights: Weights = ()) -> DeviceState:
        """The state of an engine in which nothing has run."""
        make = jax.jit(self._slot_state, static_argnums=0, out_shardings=self._slot_shardings())
        state = DeviceState(weights, self.allocate_cache(num_pages), *make(num_pages))
        return state._replace(pooling_weights=pooling_weights)

    def place_pooling_weights(self, arrays: Sequence[HostArray]) -> Weights:
        """Put the tensors of the steps after pooling on the devices, each of which has them whole."""
        place = ShardingRules().sharding(self.mesh, ())
        return tuple(jax.device_put(array, place) for array in arrays)

    def allocate_cache(self, num_pages: int) -> tuple[Any, ...]:
        """The pool, of zeros; on a CPU its pages become resident when something is written to them."""
        pool = self.cache.allocate(num_pages, self.mesh)
        if self.mesh.devices.flat[0].platform == "cpu":
            for array in jax.tree.leaves(jax.block_until_ready(pool)):
                for shard in array.addressable_shards:
                    leave_zeros(shard.data.unsafe_buffer_pointer(), shard.data.nbytes)
        return pool

    def abstract(self, weights: Weights, num_pages: int) -> DeviceState:
        """The same without memory: a ShapeDtypeStruct for each array."""
        slot_state = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(functools.partial(self._slot_state, num_pages)),
            self._slot_shardings(),
        )
        cache: Any = self.cache.abstract(num_pages, self.mesh)
        place = ShardingRules().sharding(self.mesh, ())
        tensors: Any = tuple(
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
            for _, _, shape in (() if self.pooling is None else self.pooling.tensors)
        )
        return DeviceState(weights, cache, *slot_state)._replace(pooling_weights=tensors)

    def _slot_state(self, num_pages: int) -> tuple[Any, ...]:
        """All but the weights and the cache, in the order of DeviceState."""
        num_slots = self.ranks.num_ranks * self.num_slots
        tables = jnp.zeros((num_slots, self.num_tables * self.num_columns), jnp.int32)
        lengths = jnp.zeros(num_slots, jnp.int32)
        if self.pooling is None:
            sampler = SamplerState.allocate(num_slots, self.vocab_size)
        else:
            sampler = SamplerState.of_last_token(jnp.zeros(num_slots, jnp.int32))
        pooled = jnp.zeros((num_slots, self.pooled_size))
        embeds = jnp.zeros((self.ranks.num_ranks * self.num_embeds, self.hidden_size), self.dtype)
        drafting: tuple[jax.Array, ...] = ()
        if self.proposer is not None:
            page_tokens = jnp.zeros((self.ranks.num_ranks * num_pages, self.page_size), jnp.int32)
            drafting = page_tokens, jnp.zeros((num_slots, self.proposer.num_drafts), jnp.int32), lengths
        return tables, lengths, sampler, pooled, embeds, *drafting

    def _slot_shardings(self) -> tuple[Any, ...]:
        """Shardings of `_slot_state`; arrays with a column for each token are split over the vocabulary."""
        rows: Any = self.ranks.state
        by_token: Any = ShardingRules().sharding(self.mesh, ("ranks", "vocab")) if self.pooling is None else rows
        sampler = SamplerState(rows, by_token, by_token, rows, rows, rows, rows)
        drafting = (rows,) * 3 if self.proposer is not None else ()
        return rows, rows, sampler, rows, rows, *drafting


def bytes_per_device(tree: Any) -> int:
    """Bytes that one device holds of arrays or ShapeDtypeStructs with shardings."""
    return sum(num_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree))
