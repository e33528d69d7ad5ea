"""StepTracer: what steps came to, for the engine's counters and for the traces of the requests in them."""

import collections
import dataclasses
import time
from collections.abc import Sequence

from palladio.runtime.core.observers import StepObserver
from palladio.runtime.execution.model_runner import InFlightStep
from palladio.runtime.interface.messages import BucketSteps, EngineStats
from palladio.runtime.interface.request_trace import DecodeSteps, PrefillChunk
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A dispatched step.

    Attributes:
        num_tokens, num_padding: of all ranks. bucket_size: of each, see InFlightStep.
        chunks: of the prompts in it.
    """

    started: float
    num_tokens: int
    num_padding: int
    bucket_size: int
    chunks: list[PrefillChunk]


class StepTracer(StepObserver):
    """Is told of every step twice, in order: when it is dispatched, and when its tokens are there.

    Args:
        scheduler: its ranks are told of the decode steps, for the traces of requests.
    """

    def __init__(self, scheduler: DataParallelScheduler) -> None:
        self._scheduler = scheduler
        self._in_flight: collections.deque[_Step] = collections.deque()
        self._counts: dict[tuple[str, int], list[int]] = {}  # by kind and bucket: steps, tokens, padding

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        chunks: list[PrefillChunk] = []
        planned, bucket_size = step.planned, step.bucket_size
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

    def before_process(self, step: InFlightStep, waited: bool) -> None:
        planned, num_steps = step.planned, step.num_steps
        noted, kind = self._in_flight.popleft(), planned.kind
        counts = self._counts.get((kind, noted.bucket_size))
        if counts is None:
            counts = self._counts[kind, noted.bucket_size] = [0, 0, 0]
        counts[0] += 1
        counts[1] += noted.num_tokens
        counts[2] += noted.num_padding * num_steps
        for rank, batch in planned.parts:
            if batch.num_decodes:
                rows = batch.num_decodes
                bucket_rows = noted.bucket_size if kind == "decode" else rows
                decoded = DecodeSteps(num_steps, rows * num_steps, bucket_rows * num_steps)
                self._scheduler.schedulers[rank].count_decoding(decoded)
        if noted.chunks:
            seconds = time.time() - noted.started
            for chunk in noted.chunks:
                chunk.end(seconds)

    def after_loss(self) -> None:
        self._in_flight.clear()

    def add_to(self, stats: EngineStats) -> EngineStats:
        return dataclasses.replace(stats, steps=self._steps())

    def _steps(self) -> list[BucketSteps]:
        """Steps since the start, by bucket, the smallest first."""
        widths = {bucket.num_tokens: bucket.num_requests for bucket in self._scheduler.buckets.prefill}
        return [
            BucketSteps(kind, size if kind == "decode" else widths.get(size, 0), size, *counts)
            for (kind, size), counts in sorted(self._counts.items())
        ]
