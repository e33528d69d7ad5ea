"""BatchBuilder: a ScheduledBatch as the few numbers that the device does not know yet.

Positions, page ids, block tables and sampled tokens are derived or kept on the device (see `step_functions`), so one
small int32 vector a step crosses the border. Their layout is here and nowhere else.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from palladio.runtime.execution.sampler_state import MAX_SUPPRESSED_IDS, SlotRules
from palladio.runtime.interface.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from palladio.runtime.scheduling.buckets import Buckets, PrefillBucket
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.scheduled_batch import ScheduledBatch, ScheduledStep

Int32Array = npt.NDArray[np.int32]

# Columns of one row's sampling parameters; float columns hold the bits of a float32.
(
    SLOT,
    POSITION,
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
) = range(13)
NUM_COLUMNS = 13

ON_DEVICE = -1  # in place of a token id: the one that the request's slot sampled last
SPARE_UPDATES = 64  # changes of the block table beyond those of new tokens: cached prefixes of up to so many pages
EARLY_UPDATES = 512  # longer ones are written ahead of the step, so many at a time


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardLayout:
    """Where each part of a forward step's vector lies. T = 0 for a decode step: its tokens are on the device.

    Attributes:
        num_requests: B. num_tokens: T. num_updates: U, changes of the block table.
        sample_sizes: of how many first rows the step hands over hidden states: the sample buckets; over B it pads.
        num_steps: forward passes; more than one only of a decode step.
    """

    num_requests: int
    num_tokens: int
    num_updates: int
    sample_sizes: tuple[int, ...]
    num_steps: int = 1

    @classmethod
    def decode(cls, num_requests: int, page_size: int, num_steps: int = 1) -> Self:
        num_updates = num_requests * -(-num_steps // page_size)
        return cls(num_requests, 0, num_updates, (num_requests,), num_steps)

    @classmethod
    def prefill(cls, bucket: PrefillBucket, page_size: int, sample_sizes: Sequence[int]) -> Self:
        num_updates = bucket.num_tokens // page_size + bucket.num_requests + SPARE_UPDATES
        return cls(bucket.num_requests, bucket.num_tokens, num_updates, tuple(sample_sizes))

    @property
    def size(self) -> int:
        return 2 + 3 * self.num_requests + 3 * self.num_updates + self.num_tokens

    def sections(self) -> tuple[slice, ...]:
        """Slices of: counts [2] (requests, decodes), slot_ids [B], starts [B], lengths [B], updates [3·U] (as [U, 3]),
        token_ids [T]."""
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
    def of(cls, buckets: Buckets, page_size: int, num_decode_steps: int = 1) -> Self:
        """Args: num_decode_steps: forward passes of a decode step."""
        return cls(
            {size: ForwardLayout.decode(size, page_size, num_decode_steps) for size in buckets.decode},
            {bucket: ForwardLayout.prefill(bucket, page_size, buckets.sample) for bucket in buckets.prefill},
        )


class SlotColumns:
    """The constant sampling columns of each slot, filled once when a request takes it."""

    def __init__(self, num_slots: int) -> None:
        self._values = np.zeros((num_slots, NUM_COLUMNS), np.int32)
        self._floats = self._values.view(np.float32)
        self.assign(0, SamplingParams(temperature=0.0), seed=0, num_prompt_tokens=0)

    def assign(self, slot: int, params: SamplingParams, *, seed: int, num_prompt_tokens: int) -> None:
        row, floats = self._values[slot], self._floats[slot]
        row[SLOT] = slot
        row[SEED_LOW : SEED_HIGH + 1] = np.array(split_seed(seed), np.uint32).view(np.int32)
        row[TOP_K] = min(params.top_k, 2**31 - 1)
        row[MIN_POSITION] = num_prompt_tokens + params.min_tokens
        row[HAS_BIAS] = bool(params.logit_bias)
        floats[TEMPERATURE] = 0.0 if params.is_greedy else params.temperature
        floats[TOP_P], floats[MIN_P] = params.top_p, params.min_p
        floats[FREQUENCY], floats[PRESENCE] = params.frequency_penalty, params.presence_penalty
        floats[REPETITION] = params.repetition_penalty

    def take(self, slot_ids: Int32Array) -> Int32Array:
        return self._values[slot_ids]


@dataclasses.dataclass(frozen=True, slots=True)
class HostBatch:
    """One step's vectors, one of each group, and the bucket that they fill.

    Attributes:
        forward: i32[layout.size]
        sampling: i32[R, NUM_COLUMNS] of the rows that sample, padded to a sample bucket; None: none does.
        early_updates: i32[EARLY_UPDATES, 3] each: changes of the block tables that do not fit the step's vectors.
        score_targets: i32[T], the prompt token that each position predicts; None: no logprobs of prompts are asked for.
    """

    layout: ForwardLayout
    forward: list[Int32Array]
    sampling: list[Int32Array] | None
    early_updates: list[list[Int32Array]]
    score_targets: list[Int32Array] | None

    @property
    def num_sampled(self) -> int:
        """Rows of each group that are sampled, padding included."""
        return 0 if self.sampling is None else len(self.sampling[0])

    @property
    def bucket_size(self) -> int:
        """Of each group: tokens, or rows of a decode step."""
        return self.layout.num_tokens or self.layout.num_requests


class BatchBuilder:
    """Fills step vectors for the smallest bucket that holds the largest batch of a step.

    Args:
        columns: of each group.
    """

    def __init__(self, buckets: Buckets, layouts: StepLayouts, columns: Sequence[SlotColumns]) -> None:
        self.buckets = buckets
        self._layouts = layouts
        self._columns = columns

    def use(self, buckets: Buckets) -> None:
        """Those that steps are built for from now on."""
        self.buckets = buckets

    def build(self, step: ScheduledStep) -> HostBatch:
        only_decodes = step.kind == "decode"
        if only_decodes and self._layouts.decode:
            layout = self._layouts.decode[self.buckets.pick_decode(step.num_rows)]
        else:
            layout = self._layouts.prefill[self.buckets.pick_prefill(step.num_tokens, step.num_rows)]
        forward, early = [], []
        for batch in step.batches:
            vector, before = self._fill(layout, batch)
            forward.append(vector)
            early.append(before)
        nothing = np.zeros((EARLY_UPDATES, 3), np.int32)
        return HostBatch(
            layout,
            forward,
            self._sampling(step),
            [list(arrays) for arrays in itertools.zip_longest(*early, fillvalue=nothing)],
            None if only_decodes else _score_targets(step, layout.num_tokens),
        )

    def _fill(self, layout: ForwardLayout, batch: ScheduledBatch | None) -> tuple[Int32Array, list[Int32Array]]:
        """One group's vector, and the changes of its block table that come before."""
        forward = np.zeros(layout.size, np.int32)
        if batch is None:
            return forward, []
        rows = batch.rows
        num_rows = len(rows)
        counts, slot_ids, starts, lengths, updates, token_ids = layout.sections()
        # In a single shape all rows take one path: results must not depend on whether a token is decoded.
        forward[counts] = num_rows, batch.num_decodes if self._layouts.decode else 0
        forward[slot_ids][:num_rows] = [row.request.slot for row in rows]
        forward[starts][:num_rows] = [row.start for row in rows]
        forward[lengths][:num_rows] = [row.num_tokens for row in rows]
        early, late = _split_updates(batch.table_updates, layout.num_updates)
        if late:
            forward[updates].reshape(-1, 3)[: len(late)] = late
        if layout.num_tokens:
            tokens: list[int] = []
            for row in rows:
                tokens += (ON_DEVICE,) if row.decodes else row.request.token_ids[row.start : row.start + row.num_tokens]
            forward[token_ids][: len(tokens)] = tokens
        return forward, early

    def _sampling(self, step: ScheduledStep) -> list[Int32Array] | None:
        most = step.num_sampled_rows
        if most == 0:
            return None
        size = self.buckets.pick_sample(most)
        vectors = []
        for columns, batch in zip(self._columns, step.batches, strict=True):
            rows = [] if batch is None else batch.rows[: batch.num_sampled_rows]
            count = len(rows)
            slot_ids = np.zeros(size, np.int32)
            slot_ids[:count] = [row.request.slot if row.request.max_tokens > 0 else 0 for row in rows]
            sampling = columns.take(slot_ids)
            sampling[:count, POSITION] = [row.start + (1 if row.decodes else row.num_tokens) for row in rows]
            vectors.append(sampling)
        return vectors


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


def _score_targets(step: ScheduledStep, num_tokens: int) -> list[Int32Array] | None:
    if not any(row.request.prompt_logprobs is not None for row in step.rows):
        return None
    vectors = []
    for batch in step.batches:
        targets = np.zeros(num_tokens, np.int32)
        begin = 0
        for row in [] if batch is None else batch.rows:
            count = num_scored(row.request, row.start, row.num_tokens)
            targets[begin : begin + count] = row.request.given.prompt_ids[row.start + 1 : row.start + 1 + count]
            begin += row.num_tokens
        vectors.append(targets)
    return vectors


def num_scored(request: Request, start: int, num_tokens: int) -> int:
    """How many of a row's positions predict a prompt token whose logprob is asked for."""
    if request.prompt_logprobs is None:
        return 0
    return max(0, min(start + num_tokens, request.num_prompt_tokens - 1) - start)


def split_seed(seed: int) -> tuple[int, int]:
    """Low and high 32-bit word of a seed in [-2**63, 2**64); a negative one stands for its two's complement."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be in [-2**63, 2**64), got {seed}")
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


def slot_rules(logit_bias: Mapping[int, float], stop_ids: Sequence[int], vocab_size: int) -> SlotRules:
    """Pads a request's rules to their rows, on the host.

    Args:
        logit_bias: token id in 0 … V-1 → bias; at most MAX_LOGIT_BIAS.
        stop_ids: in 0 … V-1; at most MAX_SUPPRESSED_IDS.
        vocab_size: V, columns of the logits.

    Raises:
        ValueError: more entries than the rows hold.
    """
    if len(logit_bias) > MAX_LOGIT_BIAS or len(stop_ids) > MAX_SUPPRESSED_IDS:
        raise ValueError(
            f"at most {MAX_LOGIT_BIAS} logit biases and {MAX_SUPPRESSED_IDS} stop token ids are supported, "
            f"got {len(logit_bias)} and {len(stop_ids)}"
        )
    bias_ids = np.full(MAX_LOGIT_BIAS, vocab_size, np.int32)
    bias_values = np.zeros(MAX_LOGIT_BIAS, np.float32)
    suppressed_ids = np.full(MAX_SUPPRESSED_IDS, vocab_size, np.int32)
    bias_ids[: len(logit_bias)] = list(logit_bias)
    bias_values[: len(logit_bias)] = list(logit_bias.values())
    suppressed_ids[: len(stop_ids)] = stop_ids
    return SlotRules(bias_ids, bias_values, suppressed_ids)
