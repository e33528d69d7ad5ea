"""StepTracer: what steps came to, for the engine's counters and for the traces of the requests in them."""

import collections
import dataclasses
import time

from palladio.runtime.messages import BucketSteps
from palladio.runtime.request_trace import DecodeSteps, PrefillChunk
from palladio.runtime.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduler import Scheduler


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A dispatched step. chunks: of the prompts in it."""

    started: float
    num_tokens: int
    num_padding: int
    chunks: list[PrefillChunk]


class StepTracer:
    """Is told of every step twice, in order: when it is dispatched, and when its tokens are there.

    Args:
        scheduler: its `decode_steps` are counted here.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._in_flight: collections.deque[_Step] = collections.deque()
        self._counts: dict[tuple[str, int], list[int]] = {}  # by kind and bucket: steps, tokens, padding

    def dispatched(self, batch: ScheduledBatch, num_tokens: int, num_padding: int) -> None:
        """Args:
        num_tokens: of the batch. num_padding: tokens of its bucket that no request uses.
        """
        chunks: list[PrefillChunk] = []
        started = time.time()
        if batch.kind == "prefill":
            size = num_tokens + num_padding
            for row in batch.rows[batch.num_decodes :]:
                chunk = PrefillChunk(started, row.num_tokens, num_tokens, size)
                row.request.trace.add_chunk(chunk)
                chunks.append(chunk)
        self._in_flight.append(_Step(started, num_tokens, num_padding, chunks))

    def read(self, batch: ScheduledBatch, num_steps: int) -> None:
        """Called before the scheduler gets the tokens. Args: num_steps: forward passes of the step."""
        step = self._in_flight.popleft()
        size = (len(batch.rows) if batch.kind == "decode" else step.num_tokens) + step.num_padding
        counts = self._counts.get((batch.kind, size))
        if counts is None:
            counts = self._counts[batch.kind, size] = [0, 0, 0]
        counts[0] += 1
        counts[1] += step.num_tokens
        counts[2] += step.num_padding * num_steps
        if batch.num_decodes:
            rows = batch.num_decodes
            bucket_rows = size if batch.kind == "decode" else rows
            decoded = DecodeSteps(num_steps, rows * num_steps, bucket_rows * num_steps)
            self._scheduler.decode_steps = self._scheduler.decode_steps.plus(decoded)
        if step.chunks:
            seconds = time.time() - step.started
            for chunk in step.chunks:
                chunk.seconds = seconds

    def forget(self) -> None:
        """The tokens of the steps under way will never come."""
        self._in_flight.clear()

    def stats(self) -> list[BucketSteps]:
        """Steps since the start, by bucket, the smallest first."""
        widths = {bucket.num_tokens: bucket.num_requests for bucket in self._scheduler.buckets.prefill}
        return [
            BucketSteps(kind, size if kind == "decode" else widths.get(size, 0), size, *counts)
            for (kind, size), counts in sorted(self._counts.items())
        ]
