"""BatchBuilder: a ScheduledBatch as the few numbers that the device does not know yet.

Positions, page ids, block tables and sampled tokens are derived or kept on the device (see `step_functions`), so one
small int32 vector a step crosses the border. Their layout is here and nowhere else.
"""

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from palladio.runtime.buckets import Buckets, PrefillBucket
from palladio.runtime.request import Request
from palladio.runtime.sampler import split_seed
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.scheduler import ScheduledBatch

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


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardLayout:
    """Where each part of a forward step's vector lies. T = 0 for a decode step: its tokens are on the device.

    Attributes:
        num_requests: B. num_tokens: T. num_updates: U, changes of the block table.
    """

    num_requests: int
    num_tokens: int
    num_updates: int

    @classmethod
    def decode(cls, num_requests: int) -> "ForwardLayout":
        return cls(num_requests, 0, num_requests)  # a row takes at most one page a step

    @classmethod
    def prefill(cls, bucket: PrefillBucket, page_size: int) -> "ForwardLayout":
        return cls(bucket.num_requests, bucket.num_tokens, bucket.num_tokens // page_size + bucket.num_requests)

    @property
    def size(self) -> int:
        return 1 + 3 * self.num_requests + 3 * self.num_updates + self.num_tokens

    def sections(self) -> tuple[slice, ...]:
        """Slices of: count [1], slot_ids [B], starts [B], lengths [B], updates [3·U] (as [U, 3]), token_ids [T]."""
        bounds = [0, 1]
        for length in (*(self.num_requests,) * 3, 3 * self.num_updates, self.num_tokens):
            bounds.append(bounds[-1] + length)
        return tuple(slice(low, high) for low, high in itertools.pairwise(bounds))


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
    """One step's vectors, and the bucket that they fill.

    Attributes:
        forward: i32[layout.size]
        sampling: i32[B, NUM_COLUMNS]; slot 0 in rows that do not sample.
        score_targets: i32[T], the prompt token that each position predicts; None: no logprobs of prompts are asked for.
        num_padding: tokens of the bucket that no request uses.
    """

    layout: ForwardLayout
    forward: Int32Array
    sampling: Int32Array
    score_targets: Int32Array | None
    num_padding: int


class BatchBuilder:
    """Fills step vectors for the smallest bucket that holds the batch."""

    def __init__(self, buckets: Buckets, columns: SlotColumns, page_size: int) -> None:
        self._buckets = buckets
        self._columns = columns
        self._decode_layouts = {size: ForwardLayout.decode(size) for size in buckets.decode}
        self._prefill_layouts = {bucket: ForwardLayout.prefill(bucket, page_size) for bucket in buckets.prefill}

    def build(self, batch: ScheduledBatch) -> HostBatch:
        rows = batch.rows
        if batch.kind == "decode":
            layout = self._decode_layouts[self._buckets.pick_decode(len(rows))]
        else:
            layout = self._prefill_layouts[self._buckets.pick_prefill(batch.num_tokens, len(rows))]
        forward = np.zeros(layout.size, np.int32)
        count, slot_ids, starts, lengths, updates, token_ids = layout.sections()
        forward[count] = len(rows)
        forward[slot_ids][: len(rows)] = [row.request.slot for row in rows]
        forward[starts][: len(rows)] = [row.start for row in rows]
        forward[lengths][: len(rows)] = [row.num_tokens for row in rows]
        if batch.table_updates:
            assert len(batch.table_updates) <= layout.num_updates, "more new pages than the bucket's tokens can fill"
            forward[updates].reshape(-1, 3)[: len(batch.table_updates)] = batch.table_updates
        if batch.kind == "prefill":
            tokens: list[int] = []
            for row in rows:
                tokens += row.request.token_ids[row.start : row.start + row.num_tokens]
            forward[token_ids][: len(tokens)] = tokens
        return HostBatch(
            layout,
            forward,
            self._sampling(batch, layout.num_requests),
            _score_targets(batch, layout.num_tokens) if batch.kind == "prefill" else None,
            (layout.num_tokens or layout.num_requests) - batch.num_tokens,
        )

    def _sampling(self, batch: ScheduledBatch, num_requests: int) -> Int32Array:
        slot_ids = np.zeros(num_requests, np.int32)
        slot_ids[: len(batch.rows)] = [
            row.request.slot if row.samples and row.request.max_tokens > 0 else 0 for row in batch.rows
        ]
        sampling = self._columns.take(slot_ids)
        sampling[: len(batch.rows), POSITION] = [row.start + row.num_tokens for row in batch.rows]
        return sampling


def _score_targets(batch: ScheduledBatch, num_tokens: int) -> Int32Array | None:
    if not any(row.request.prompt_logprobs is not None for row in batch.rows):
        return None
    targets = np.zeros(num_tokens, np.int32)
    begin = 0
    for row in batch.rows:
        count = num_scored(row.request, row.start, row.num_tokens)
        targets[begin : begin + count] = row.request.prompt_ids[row.start + 1 : row.start + 1 + count]
        begin += row.num_tokens
    return targets


def num_scored(request: Request, start: int, num_tokens: int) -> int:
    """How many of a row's positions predict a prompt token whose logprob is asked for."""
    if request.prompt_logprobs is None:
        return 0
    return max(0, min(start + num_tokens, request.num_prompt_tokens - 1) - start)
