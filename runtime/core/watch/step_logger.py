"""Log lines of steps, and the traces of their requests."""

import collections
import dataclasses
import logging
import time

from palladio.runtime.core.start.startup import EngineParts
from palladio.runtime.core.watch.step_counters import DeviceIdle, RecompileCounter
from palladio.runtime.core.watch.step_forwarders import PublishedPages
from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.core.watch.timeline_recorder import TimelineRecorder
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_stats import BucketSteps, EngineStats, RankStats
from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_trace import DecodeSteps, PrefillChunk
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.telemetry.logs import fields

logger = logging.getLogger("palladio.engine")


def usual_observers(config: EngineConfig, parts: EngineParts) -> tuple[StepObserver, ...]:
    """The observers of a served engine: they count, log and record its steps."""
    return (
        DeviceIdle(),
        StepTracer(parts.scheduler),
        StepLogger(
            parts.scheduler,
            config.execution.decode_log_interval,
            uses_cuda_graphs=parts.ready.device.startswith("gpu"),  # XLA captures them there by default
        ),
        TimelineRecorder(parts.scheduler),
        RecompileCounter(parts.runner.programs.built, fails=config.execution.fail_on_recompile),
        *([PublishedPages(parts.scheduler)] if parts.scheduler.events else []),
    )


class StepLogger(StepObserver):
    """Logs each prefill batch, and every `decode_log_interval` decode batches the throughput since the last such line,
    without the time in which there was no request. With several data-parallel ranks, each has lines of its own, which
    begin with its name."""

    def __init__(self, scheduler: EngineScheduler, decode_log_interval: int, *, uses_cuda_graphs: bool = False) -> None:
        """
        Args:
            uses_cuda_graphs: whether the device runs programs as CUDA graphs, as SGLang's lines say.
        """
        has_ranks = len(scheduler.schedulers) > 1
        self._ranks = [
            _RankLogger(f"DP{rank} " if has_ranks else "", one, decode_log_interval, uses_cuda_graphs)
            for rank, one in enumerate(scheduler.schedulers)
        ]
        self._idle_since: float | None = time.perf_counter()

    def after_add(self, request: Request) -> None:
        if self._idle_since is not None:
            for log in self._ranks:
                log.skip(time.perf_counter() - self._idle_since)
            self._idle_since = None

    def after_step(self, is_idle: bool) -> None:
        if is_idle and self._idle_since is None:
            self._idle_since = time.perf_counter()

    def after_dispatch(self, step: InFlightStep) -> None:
        for rank, batch in step.planned.parts:
            self._ranks[rank].log_batch(batch, step.bucket_size - batch.size)
        for log in self._ranks:
            log.log_retractions()

    def add_to(self, stats: EngineStats) -> EngineStats:
        pairs = zip(stats.ranks, self._ranks, strict=True)
        return dataclasses.replace(stats, ranks=[log.add_to(rank) for rank, log in pairs])


class _RankLogger:
    """Attributes:
    last_gen_throughput: tokens per second of the last logged decode interval.
    """

    def __init__(self, name: str, scheduler: Scheduler, decode_log_interval: int, uses_cuda_graphs: bool) -> None:
        self._name = name
        self._scheduler = scheduler
        self._interval = decode_log_interval
        self._uses_cuda_graphs = uses_cuda_graphs
        self._num_decodes = 0
        self._num_tokens = 0
        self._drafts = DraftCounts()
        self._since = time.perf_counter()
        self.last_gen_throughput = 0.0
        self._num_prefill_tokens = 0

    def add_to(self, stats: RankStats) -> RankStats:
        """What it knows of its rank."""
        counts = {"num_prefill_tokens": self._num_prefill_tokens}
        return dataclasses.replace(stats, last_gen_throughput=self.last_gen_throughput, **counts)

    def skip(self, seconds: float) -> None:
        """Leaves so much time, in which there was nothing to do, out of the throughput."""
        self._since += seconds

    def log_batch(self, batch: ScheduledBatch, num_padding: int) -> None:
        """Count a batch, and log it if it is due.

        Args:
            num_padding: rows or tokens of padding in its bucket.
        """
        if batch.chunks and any(row.start < row.request.num_prompt_tokens for row in batch.chunks):
            self._log_prefill(batch, num_padding)
            return
        self._num_decodes += batch.num_passes
        self._num_tokens += batch.num_tokens if batch.kind == "decode" else batch.num_rows
        if self._num_decodes >= self._interval:
            self._num_decodes %= self._interval
            self._log_decode(batch, num_padding)

    def _count_drafts(self) -> DraftCounts:
        """The drafts read since the last call."""
        drafts = self._scheduler.drafts
        new, self._drafts = drafts.since(self._drafts), dataclasses.replace(drafts)
        return new

    def log_retractions(self) -> None:
        """Log the retractions since the last call."""
        if not self._scheduler.retractor.retractions:
            return
        for retraction in self._scheduler.retractor.take_retractions():
            logger.warning(
                "%sKV cache pool is full. Retract requests. #retracted_reqs: %d, #new_token_ratio: %.4f -> %.4f",
                self._name,
                retraction.num_retracted,
                retraction.old_ratio,
                retraction.new_ratio,
                extra=fields(
                    event="retraction",
                    num_retracted=retraction.num_retracted,
                    old_new_token_ratio=retraction.old_ratio,
                    new_token_ratio=retraction.new_ratio,
                ),
            )

    def _usage(self) -> tuple[int, float]:
        cache = self._scheduler.cache
        used = cache.num_used_tokens
        return used, used / cache.num_total_tokens

    def _log_prefill(self, batch: ScheduledBatch, num_padding: int) -> None:
        prefill, num_tokens = batch.chunks, batch.num_tokens
        new = [row.request for row in prefill if row.start == row.request.num_cached_tokens]
        num_cached = sum(request.num_cached_tokens for request in new)
        self._num_tokens += batch.num_sampled_rows
        self._num_prefill_tokens += num_tokens - batch.num_decodes
        usage, size, num_running = self._usage()[1], num_tokens + num_padding, len(self._scheduler.running)
        logger.info(
            "%sPrefill batch. #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, bucket: tok=%d, pad: %d%%",
            self._name,
            len(new),
            num_tokens,
            num_cached,
            usage,
            num_running - len(prefill),
            batch.num_waiting,
            size,
            round(100 * num_padding / size),
            extra=fields(
                event="prefill",
                new_seqs=len(new),
                new_tokens=num_tokens,
                cached_tokens=num_cached,
                token_usage=usage,
                running_reqs=num_running - len(prefill),
                queue_reqs=batch.num_waiting,
                bucket_tokens=size,
                padding_tokens=num_padding,
            ),
        )

    def _log_decode(self, batch: ScheduledBatch, num_padding: int) -> None:
        now = time.perf_counter()
        drafts, shown, accepted = self._count_drafts(), "", {}
        if self._scheduler.limits.num_drafts:
            accepted = {"accept_length": drafts.accept_length, "accept_rate": drafts.accept_rate}
            shown = f"accept len: {drafts.accept_length:.2f}, accept rate: {drafts.accept_rate:.2f}, "
        self._num_tokens += drafts.num_accepted_drafts
        self.last_gen_throughput = self._num_tokens / max(now - self._since, 1e-9)
        self._since, self._num_tokens = now, 0
        used, usage = self._usage()
        size = batch.size + num_padding
        logger.info(
            "%sDecode batch. #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d, bucket: bs=%d, pad: %d%%",
            self._name,
            batch.num_rows,
            used,
            usage,
            shown,
            self._uses_cuda_graphs,
            self.last_gen_throughput,
            batch.num_waiting,
            size,
            round(100 * num_padding / size),
            extra=fields(
                event="decode",
                running_reqs=batch.num_rows,
                tokens=used,
                token_usage=usage,
                gen_throughput=self.last_gen_throughput,
                queue_reqs=batch.num_waiting,
                bucket_requests=size,
                padding_rows=num_padding,
                **accepted,
            ),
        )


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
    """Records every step when it is dispatched, and in the same order when its tokens are there.

    Args:
        scheduler: its ranks count the decode steps, for the traces of requests.
    """

    def __init__(self, scheduler: EngineScheduler) -> None:
        self._scheduler = scheduler
        self._ranks = scheduler.schedulers
        self._in_flight: collections.deque[_Step] = collections.deque()
        self._counts: dict[tuple[str, int], list[int]] = {}  # by kind and bucket: steps, tokens, padding

    def after_dispatch(self, step: InFlightStep) -> None:
        chunks: list[PrefillChunk] = []
        planned, bucket_size = step.planned, step.bucket_size
        started, num_tokens, num_used = time.time(), 0, 0
        for _, batch in planned.parts:
            num_tokens += batch.num_tokens
            num_used += batch.size
            for row in batch.chunks:
                chunk = PrefillChunk(started, row.num_tokens, batch.num_tokens, bucket_size)
                row.request.trace.add_chunk(chunk)
                chunks.append(chunk)
        num_padding = bucket_size * len(self._ranks) - num_used
        self._in_flight.append(_Step(started, num_tokens, num_padding, bucket_size, chunks))

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
                self._ranks[rank].count_decoding(decoded)
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
