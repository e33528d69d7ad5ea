"""The batch log lines that operators of SGLang know, with our bucket and padding figures appended."""

import dataclasses
import logging
import time
from collections.abc import Sequence

from palladio.runtime.core.observers import StepObserver
from palladio.runtime.execution.model_runner import InFlightStep
from palladio.runtime.interface.messages import EngineStats
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.telemetry.logs import fields

logger = logging.getLogger("palladio.engine")


class StepLogger(StepObserver):
    """Logs each prefill batch, and every so many decode batches with the throughput since the last such line; where
    there are several data-parallel ranks, of each, which the line then begins with."""

    def __init__(
        self, scheduler: DataParallelScheduler, decode_log_interval: int, *, uses_cuda_graphs: bool = False
    ) -> None:
        """Args: uses_cuda_graphs: whether the device runs programs as CUDA graphs, as SGLang's lines say."""
        has_ranks = len(scheduler.schedulers) > 1
        self._ranks = [
            _RankLogger(f"DP{rank} " if has_ranks else "", one, decode_log_interval, uses_cuda_graphs)
            for rank, one in enumerate(scheduler.schedulers)
        ]

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        for (rank, batch), count in zip(step.planned.parts, num_tokens, strict=True):
            self._ranks[rank].log_batch(batch, count, step.bucket_size - batch.size)
        for log in self._ranks:
            log.log_retractions()

    def add_to(self, stats: EngineStats) -> EngineStats:
        pairs = zip(stats.ranks, self._ranks, strict=True)
        ranks = [dataclasses.replace(rank, last_gen_throughput=log.last_gen_throughput) for rank, log in pairs]
        return dataclasses.replace(stats, ranks=ranks)


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
        self._since = time.perf_counter()
        self.last_gen_throughput = 0.0

    def log_batch(self, batch: ScheduledBatch, num_tokens: int, num_padding: int) -> None:
        """Args: num_tokens: of the batch. num_padding: what its bucket has beside them."""
        if any(row.start < row.request.num_prompt_tokens for row in batch.rows[batch.num_decodes :]):
            self._log_prefill(batch, num_tokens, num_padding)
            return
        self._num_decodes += 1
        self._num_tokens += num_tokens
        if self._num_decodes % self._interval == 0:
            self._log_decode(batch, num_padding)

    def log_retractions(self) -> None:
        """Of those since the last time."""
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

    def _log_prefill(self, batch: ScheduledBatch, num_tokens: int, num_padding: int) -> None:
        prefill = batch.rows[batch.num_decodes :]
        new = [row.request for row in prefill if row.start == row.request.num_cached_tokens]
        num_cached = sum(request.num_cached_tokens for request in new)
        self._num_tokens += batch.num_sampled_rows
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
        self.last_gen_throughput = self._num_tokens / max(now - self._since, 1e-9)
        self._since, self._num_tokens = now, 0
        used, usage = self._usage()
        size = len(batch.rows) + num_padding
        logger.info(
            "%sDecode batch. #running-req: %d, #token: %d, token usage: %.2f, cuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d, bucket: bs=%d, pad: %d%%",
            self._name,
            len(batch.rows),
            used,
            usage,
            self._uses_cuda_graphs,
            self.last_gen_throughput,
            batch.num_waiting,
            size,
            round(100 * num_padding / size),
            extra=fields(
                event="decode",
                running_reqs=len(batch.rows),
                tokens=used,
                token_usage=usage,
                gen_throughput=self.last_gen_throughput,
                queue_reqs=batch.num_waiting,
                bucket_requests=size,
                padding_rows=num_padding,
            ),
        )
