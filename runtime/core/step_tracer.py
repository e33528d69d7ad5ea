"""StepTracer: what steps came to, for the engine's counters and for the traces of the requests in them."""

import collections
import dataclasses
import time
from collections.abc import Sequence

from palladio.runtime.interface.messages import BucketSteps
from palladio.runtime.interface.request_trace import DecodeSteps, PrefillChunk
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.scheduled_batch import ScheduledStep


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A dispatched step.

    Attributes:
        num_tokens, num_padding: of all groups. bucket_size: of each, see InFlightStep.
        chunks: of the prompts in it.
    """

    started: float
    num_tokens: int
    num_padding: int
    bucket_size: int
    chunks: list[PrefillChunk]


class StepTracer:
    """Is told of every step twice, in order: when it is dispatched, and when its tokens are there.

    Args:
        groups: the `decode_steps` of their schedulers are counted here.
    """

    def __init__(self, groups: DataParallelScheduler) -> None:
        self._groups = groups
        self._in_flight: collections.deque[_Step] = collections.deque()
        self._counts: dict[tuple[str, int], list[int]] = {}  # by kind and bucket: steps, tokens, padding

    def dispatched(self, planned: ScheduledStep, num_tokens: Sequence[int], bucket_size: int) -> None:
        """Args:
        num_tokens: of each batch. bucket_size: of each group, see InFlightStep.
        """
        chunks: list[PrefillChunk] = []
        started, parts = time.time(), planned.parts
        num_used = sum(batch.num_rows for _, batch in parts) if planned.kind == "decode" else sum(num_tokens)
        num_padding = bucket_size * len(planned.batches) - num_used
        if planned.kind == "prefill":
            for (_, batch), count in zip(parts, num_tokens, strict=True):
                for row in batch.rows[batch.num_decodes :]:
                    chunk = PrefillChunk(started, row.num_tokens, count, bucket_size)
                    row.request.trace.add_chunk(chunk)
                    chunks.append(chunk)
        self._in_flight.append(_Step(started, sum(num_tokens), num_padding, bucket_size, chunks))

    def read(self, planned: ScheduledStep, num_steps: int) -> None:
        """Called before the schedulers get the tokens. Args: num_steps: forward passes of the step."""
        step, kind = self._in_flight.popleft(), planned.kind
        counts = self._counts.get((kind, step.bucket_size))
        if counts is None:
            counts = self._counts[kind, step.bucket_size] = [0, 0, 0]
        counts[0] += 1
        counts[1] += step.num_tokens
        counts[2] += step.num_padding * num_steps
        for group, batch in planned.parts:
            if batch.num_decodes:
                rows, scheduler = batch.num_decodes, self._groups.schedulers[group]
                bucket_rows = step.bucket_size if kind == "decode" else rows
                decoded = DecodeSteps(num_steps, rows * num_steps, bucket_rows * num_steps)
                scheduler.decode_steps = scheduler.decode_steps.plus(decoded)
        if step.chunks:
            seconds = time.time() - step.started
            for chunk in step.chunks:
                chunk.seconds = seconds

    def forget(self) -> None:
        """The tokens of the steps under way will never come."""
        self._in_flight.clear()

    def stats(self) -> list[BucketSteps]:
        """Steps since the start, by bucket, the smallest first."""
        widths = {bucket.num_tokens: bucket.num_requests for bucket in self._groups.buckets.prefill}
        return [
            BucketSteps(kind, size if kind == "decode" else widths.get(size, 0), size, *counts)
            for (kind, size), counts in sorted(self._counts.items())
        ]
