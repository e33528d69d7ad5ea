"""BatchBuilder: a ScheduledBatch as the few numbers that the device does not know yet.

Lengths, positions, page ids, block tables and sampled tokens are derived or kept on the device (see `step_functions`),
so one small int32 vector a step crosses the border. Their layout is here and nowhere else.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from palladio.model.spec.encoder_spec import MOST_TYPES, TYPE_SHIFT
from palladio.runtime.execution.batch.reading import Int32Array, score_vectors
from palladio.runtime.execution.sampling.sampler import TIERS, SampleTier
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.buckets import Buckets, PrefillBucket, VerifyBucket
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledStep
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import SteadyRows
from palladio.runtime.scheduling.state.slot_columns import Slots

# Columns of one row's sampling parameters; float columns hold the bits of a float32.
(
    SLOT,
    SEED_LOW,
    SEED_HIGH,
    TOP_K,
    MIN_POSITION,
    TEMPERATURE,
    TOP_P,
    MIN_P,
    FREQUENCY,
    PRESENCE,
    REPETITION,
    HAS_BIAS,
) = range(12)
NUM_COLUMNS = 12

_LARGEST = float(np.finfo(np.float32).max)
ON_DEVICE = -1  # in place of a token id: the one that the slot sampled last; of a row's start: the slot's length, and
# each number below it stands for one more draft at most that the row has
SPARE_UPDATES = 64  # changes of the block table beyond those of new tokens: cached prefixes of up to this many pages
NOTHING = np.zeros(0, np.int32)  # in place of a vector that a step does not need
_ENDS, _UPDATES = 3, 4  # of ForwardLayout.sections
EARLY_UPDATES = 512  # longer ones are written ahead of the step, in parts of this size


@dataclasses.dataclass(frozen=True)
class ForwardLayout:
    """Where each part of a forward step's vector lies. T = 0 for a decode step: its tokens are on the device.

    Attributes:
        num_requests: B. num_tokens: T. num_updates: U, changes of the block tables.
        sample_sizes: of how many first rows the step hands over hidden states: the sample buckets; over B it pads.
        num_steps: forward passes; more than one only of a decode step.
        num_tables: block tables.
        max_passes: if over 1, the most forward passes of its joined programs, see `decode_steps`.
    """

    num_requests: int
    num_tokens: int
    num_updates: int
    sample_sizes: tuple[int, ...]
    num_steps: int = 1
    num_tables: int = 1
    max_passes: int = 1

    @classmethod
    def decode(
        cls, num_requests: int, page_size: int, num_steps: int = 1, num_tables: int = 1, max_passes: int = 1
    ) -> Self:
        num_updates = num_tables * num_requests * -(-max(num_steps, max_passes) // page_size)
        return cls(num_requests, 0, num_updates, (num_requests,), num_steps, num_tables, max_passes)

    @classmethod
    def prefill(cls, bucket: PrefillBucket, page_size: int, sample_sizes: Sequence[int], num_tables: int = 1) -> Self:
        num_updates = num_tables * (bucket.num_tokens // page_size + bucket.num_requests) + SPARE_UPDATES
        sizes = tuple(sample_sizes)
        return cls(bucket.num_requests, bucket.num_tokens, num_updates, sizes, num_tables=num_tables)

    @property
    def size(self) -> int:
        return 2 + 3 * self.num_requests + 3 * self.num_updates + self.num_tokens

    def split_tables(self, tables: jax.Array) -> tuple[jax.Array, ...]:
        """i32[B, G·C] → G times i32[B, C]."""
        if self.num_tables == 1:
            return (tables,)
        return tuple(jnp.split(tables, self.num_tables, axis=1))

    @functools.cached_property
    def sections(self) -> tuple[slice, ...]:
        """Slices of: counts [2] (requests, decodes), slot_ids [B], starts [B] (nothing in a decode step), ends [B],
        updates [3·U] (as [U, 3]), token_ids [T]. A row's tokens are [start, end) of its request; of a decode row as
        many as the step decodes, and none from `end` on."""
        bounds = [0, 2]
        for length in (*(self.num_requests,) * 3, 3 * self.num_updates, self.num_tokens):
            bounds.append(bounds[-1] + length)
        return tuple(slice(low, high) for low, high in itertools.pairwise(bounds))


@dataclasses.dataclass(frozen=True, slots=True)
class StepLayouts:
    """The layout of each bucket."""

    decode: Mapping[int, ForwardLayout]
    prefill: Mapping[PrefillBucket, ForwardLayout]

    @classmethod
    def of(
        cls, buckets: Buckets, page_size: int, num_decode_steps: int = 1, num_tables: int = 1, joined_passes: int = 1
    ) -> Self:
        """The forms of each bucket's batches.

        Args:
            num_decode_steps, joined_passes: as in DeviceShape.
            num_tables: number of block tables.
        """
        sizes = (page_size, num_decode_steps, num_tables)
        passes = {size: joined_passes if size in buckets.several else 1 for size in buckets.decode}
        return cls(
            {size: ForwardLayout.decode(size, *sizes, most) for size, most in passes.items()},
            {b: ForwardLayout.prefill(b, page_size, buckets.sample, num_tables) for b in buckets.prefill},
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StepForm:
    """What the vectors of a step have in common, whichever rank they are of.

    Attributes:
        layout: the layout of the bucket.
        num_sampled: rows that are sampled, padding included.
        marks_decodes: whether the device knows decode rows. In a single shape it does not: all rows take one path,
            because results must not depend on whether a token is decoded.
        scores: whether log-probabilities of prompts are asked for.
    """

    layout: ForwardLayout
    num_sampled: int
    marks_decodes: bool
    scores: bool

    @classmethod
    def of(cls, step: ScheduledStep, layouts: StepLayouts, buckets: Buckets) -> Self:
        """The smallest buckets that hold the largest batch of a step."""
        if step.kind == "verify" and (verify := buckets.pick_verify(step.num_rows)) is not None:
            return cls.of_drafts(verify, layouts)
        only_decodes = step.kind == "decode"
        if only_decodes and layouts.decode:
            layout = layouts.decode[buckets.pick_decode(step.num_rows)]
        else:
            layout = layouts.prefill[buckets.pick_prefill(step.num_tokens, step.num_rows)]
        most = step.num_sampled_rows
        chunks = itertools.chain.from_iterable(batch.chunks for _, batch in step.parts)
        scores = any(row.request.prompt_logprobs is not None for row in chunks)
        return cls(layout, buckets.pick_sample(most) if most else 0, bool(layouts.decode), scores)

    @classmethod
    def of_drafts(cls, bucket: VerifyBucket, layouts: StepLayouts) -> Self:
        """The form of a step that verifies drafts. Its rows are chunks, however many of their tokens are accepted."""
        return cls(layouts.prefill[bucket.forward], bucket.num_requests, marks_decodes=False, scores=False)

    @property
    def bucket_size(self) -> int:
        """Tokens, or rows of a decode step."""
        return self.layout.num_tokens or self.layout.num_requests


@dataclasses.dataclass(frozen=True, slots=True)
class HostBatch:
    """One rank's vectors of a step.

    Attributes:
        tier: of TIERS, the number of the last one in which a row is sampled.
        packed: i32[layout.size + num_sampled · NUM_COLUMNS], both of these in one array. forward: i32[layout.size].
        sampling: i32[num_sampled, NUM_COLUMNS]
        early_updates: i32[EARLY_UPDATES, 3] each: changes of the block tables that do not fit `forward`.
        score_targets: i32[T], the prompt token that each position predicts. score_slots: i32[T], of its request.
    """

    tier: int
    packed: Int32Array
    forward: Int32Array
    sampling: Int32Array
    early_updates: list[Int32Array]
    score_targets: Int32Array
    score_slots: Int32Array

    def early(self, number: int) -> Int32Array:
        """The array of this number; zeros, if other ranks have more."""
        return (
            self.early_updates[number] if number < len(self.early_updates) else np.zeros((EARLY_UPDATES, 3), np.int32)
        )


def _tier(params: SamplingParams) -> SampleTier:
    """The cheapest one in which such requests can be sampled."""
    if params.has_history or params.logprobs is not None:
        return "full"
    filters = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0  # they may drop a token
    return "greedy" if params.is_greedy else "random" if filters else "plain"


class BatchBuilder:
    """Fills the vectors of one rank, and knows its slots."""

    def __init__(self, num_slots: int) -> None:
        # The constant sampling columns of each slot; the scratch slot's are those of a greedy request.
        self._columns = np.zeros((num_slots, NUM_COLUMNS), np.int32)
        self._tiers = np.full(num_slots, TIERS.index("greedy"))
        # The request that each slot was last filled for, and how often that had been retracted then.
        self._holders: list[tuple[Request | None, int]] = [(None, 0)] * num_slots
        self._kept: _KeptRows | None = None
        self._fill_columns(0, SamplingParams(temperature=0.0), seed=0, num_prompt_tokens=0)

    def assign(self, request: Request) -> bool:
        """Fills the columns of a slot when a request first runs in it. Returns whether the device needs its
        history too."""
        slot, params, holder = request.slot, request.given.params, (request, request.num_retractions)
        if self._holders[slot] == holder:
            return False
        self._holders[slot] = holder
        assert params.seed is not None, "the front sets the seed"
        self._fill_columns(slot, params, seed=params.seed, num_prompt_tokens=request.num_prompt_tokens)
        self._tiers[slot] = TIERS.index(_tier(params))
        return params.has_history

    def _fill_columns(self, slot: int, params: SamplingParams, *, seed: int, num_prompt_tokens: int) -> None:
        row, floats = self._columns[slot], self._columns.view(np.float32)[slot]
        row[SLOT] = slot
        row[SEED_LOW : SEED_HIGH + 1] = np.array(split_seed(seed), np.uint32).view(np.int32)
        row[TOP_K] = min(params.top_k, 2**31 - 1)
        row[MIN_POSITION] = num_prompt_tokens + params.min_tokens
        row[HAS_BIAS] = bool(params.logit_bias)
        floats[TEMPERATURE] = 0.0 if params.is_greedy else min(params.temperature, _LARGEST)
        floats[TOP_P], floats[MIN_P] = params.top_p, params.min_p
        floats[FREQUENCY], floats[PRESENCE] = params.frequency_penalty, params.presence_penalty
        floats[REPETITION] = min(params.repetition_penalty, _LARGEST)

    def build(self, form: StepForm, batch: ScheduledBatch | None) -> HostBatch:
        """Fill the host arrays of a step.

        Args:
            batch: the rank's batch; None: it has nothing to do.
        """
        kept = self._kept
        if kept is not None and batch is not None and kept.holds(form, batch):
            return kept.build(batch)
        size = form.layout.size
        packed = np.zeros(size + form.num_sampled * NUM_COLUMNS, np.int32)
        forward, sampling = packed[:size], packed[size:].reshape(-1, NUM_COLUMNS)
        scored = score_vectors(batch, form.layout.num_tokens) if form.scores else (NOTHING, NOTHING)
        if batch is None:
            return HostBatch(0, packed, forward, sampling, [], *scored)
        slots = sampled = batch.decodes.slots
        if chunks := batch.chunks:
            slots = np.append(slots, np.array([row.request.slot for row in chunks], np.intp))
            # some may be there for their prompt alone
            own = [row.request.slot if row.request.max_tokens else 0 for row in chunks if row.samples]
            sampled = np.append(sampled, np.array(own, np.intp))
        early = _fill_forward(forward, form, batch, slots)
        if form.num_sampled:
            sampling[: len(sampled)] = self._columns[sampled]
        tier = int(self._tiers[slots[: len(sampled)]].max(initial=0))
        host = HostBatch(tier, packed, forward, sampling, early, *scored)
        if (steady := batch.decodes.steady) is not None and not form.layout.num_tokens:
            self._kept = _KeptRows.of(form, steady, host)
        return host


@dataclasses.dataclass(frozen=True, slots=True)
class _KeptRows:
    """A decode step's vectors, for the next one of the same rows: little of them is new there.

    Attributes:
        rows: what these have in common. packed: without changes of the tables.
    """

    form: StepForm
    rows: SteadyRows
    packed: Int32Array
    tier: int

    @classmethod
    def of(cls, form: StepForm, rows: SteadyRows, host: HostBatch) -> Self:
        """Keep what steps of the same rows have in common.

        Args:
            host: the arrays built for a batch of these rows.
        """
        packed = host.packed.copy()
        packed[form.layout.sections[_UPDATES]] = 0
        return cls(form, rows, packed, host.tier)

    def holds(self, form: StepForm, batch: ScheduledBatch) -> bool:
        """Whether a step has these rows."""
        fits = len(batch.table_updates) <= form.layout.num_updates
        return self.rows is batch.decodes.steady and self.form is form and not batch.chunks and fits

    def build(self, batch: ScheduledBatch) -> HostBatch:
        """The vectors of such a step."""
        layout, packed = self.form.layout, self.packed.copy()  # the device may still read the one before
        packed[layout.sections[_ENDS]][: batch.num_decodes] = batch.decodes.ends
        if late := batch.table_updates:
            numbers = np.fromiter(itertools.chain.from_iterable(late), np.int32, 3 * len(late))
            packed[layout.sections[_UPDATES]][: 3 * len(late)] = numbers
        sampling = packed[layout.size :].reshape(-1, NUM_COLUMNS)
        return HostBatch(self.tier, packed, packed[: layout.size], sampling, [], NOTHING, NOTHING)


def _fill_forward(forward: Int32Array, form: StepForm, batch: ScheduledBatch, slots: Slots) -> list[Int32Array]:
    """Fill the forward arrays; return changes of the block table to write before the step.

    Args:
        slots: the rows' slots.
    """
    decodes, chunks, layout = batch.decodes, batch.chunks, form.layout
    num_decodes, num_rows = batch.num_decodes, len(slots)
    counts, slot_ids, starts, ends, updates, token_ids = layout.sections
    forward[counts] = num_rows, num_decodes if form.marks_decodes else 0
    forward[slot_ids][:num_rows] = slots
    forward[ends][:num_decodes] = decodes.ends
    if chunks:
        forward[ends][num_decodes:num_rows] = [row.start + row.num_tokens for row in chunks]
    early, late = _split_updates(batch.table_updates, layout.num_updates)
    if late:
        forward[updates].reshape(-1, 3)[: len(late)] = late
    if layout.num_tokens:
        forward[starts][:num_decodes] = ON_DEVICE - decodes.num_drafts
        forward[starts][num_decodes:num_rows] = [row.start for row in chunks]
        if batch.kind != "verify":
            tokens = [ON_DEVICE] * num_decodes
            for row in chunks:
                tokens += _typed(row.request, row.start, row.start + row.num_tokens)
            forward[token_ids][: len(tokens)] = tokens
    return early


def _typed(request: Request, start: int, end: int) -> list[int]:
    """Return some of a request's tokens, for an encoder with their types in the bits above."""
    token_ids, types = request.token_ids[start:end], request.given.pooling.token_types
    if not types:
        return token_ids
    typed = zip(token_ids, types[start:end], strict=True)
    return [token_id | min(kind, MOST_TYPES) << TYPE_SHIFT for token_id, kind in typed]


def _split_updates(
    updates: list[tuple[int, int, int]], room: int
) -> tuple[list[Int32Array], list[tuple[int, int, int]]]:
    """What must be written ahead of the step, in whole arrays, and what fits its vector."""
    early = []
    while len(updates) > room:
        array = np.zeros((EARLY_UPDATES, 3), np.int32)
        part, updates = updates[:EARLY_UPDATES], updates[EARLY_UPDATES:]
        array[: len(part)] = part
        early.append(array)
    return early, updates


def split_seed(seed: int) -> tuple[int, int]:
    """Low and high 32-bit word of a seed in [-2**63, 2**64); a negative one stands for its two's complement."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be in [-2**63, 2**64), got {seed}")
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
