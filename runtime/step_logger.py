"""The batch log lines that operators of SGLang know, with our bucket and padding figures appended."""

import logging
import time

from palladio.runtime.cache_manager import CacheManager
from palladio.runtime.logs import fields
from palladio.runtime.retraction import Retraction
from palladio.runtime.scheduled_batch import ScheduledBatch

logger = logging.getLogger("palladio.engine")


class StepLogger:
    """Logs each prefill batch, and every so many decode batches with the throughput since the last such line.

    Attributes:
        last_gen_throughput: tokens per second of the last logged decode interval.
    """

    def __init__(self, cache: CacheManager, decode_log_interval: int) -> None:
        self._cache = cache
        self._interval = decode_log_interval
        self._num_decodes = 0
        self._num_tokens = 0
        self._since = time.perf_counter()
        self.last_gen_throughput = 0.0

    def log_batch(self, batch: ScheduledBatch, num_running: int, num_tokens: int, num_padding: int) -> None:
        """Args: num_running: requests. num_tokens: of the batch. num_padding: what its bucket has beside them."""
        if any(row.start < row.request.num_prompt_tokens for row in batch.rows[batch.num_decodes :]):
            self._log_prefill(batch, num_running, num_tokens, num_padding)
            return
        self._num_decodes += 1
        self._num_tokens += num_tokens
        if self._num_decodes % self._interval == 0:
            self._log_decode(batch, num_padding)

    def log_retractions(self, retractions: list[Retraction]) -> None:
        for retraction in retractions:
            logger.warning(
                "KV cache pool is full. Retract requests. #retracted_reqs: %d, #new_token_ratio: %.4f -> %.4f",
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
        used = self._cache.num_used_tokens
        return used, used / self._cache.num_total_tokens

    def _log_prefill(self, batch: ScheduledBatch, num_running: int, num_tokens: int, num_padding: int) -> None:
        prefill = batch.rows[batch.num_decodes :]
        new = [row.request for row in prefill if row.start == row.request.num_cached_tokens]
        num_cached = sum(request.num_cached_tokens for request in new)
        self._num_tokens += batch.num_sampled_rows
        usage, size = self._usage()[1], num_tokens + num_padding
        logger.info(
            "Prefill batch. #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, bucket: tok=%d, pad: %d%%",
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
            "Decode batch. #running-req: %d, #token: %d, token usage: %.2f, cuda graph: False, "
            "gen throughput (token/s): %.2f, #queue-req: %d, bucket: bs=%d, pad: %d%%",
            len(batch.rows),
            used,
            usage,
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
