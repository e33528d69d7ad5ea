"""Recomputes a sample of the prefix cache's hits while the engine is idle, and compares keys and values.

A prefix cache that hands out a wrong page gives plausible, wrong answers, and nothing else would notice. The check
prefills the same tokens once more into pages of its own and compares them with the cached ones, on the device.
"""

import collections
import dataclasses
import itertools
import logging
import random
from collections.abc import Sequence
from typing import Protocol, Self

from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.prompt_parts import Media, Rows
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.cache.cache_manager import Prefix
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.scheduling.state.request import Request, RequestStatus

# Largest accepted |difference| / |value| of a page, in root mean square. Another shape of step or bfloat16 gives up to
# a few percent in deep layers; one wrong token among 16 gives 35 %, a wrong page 140 %.
TOLERANCE = 0.1
MAX_PENDING = 64  # hits that wait for an idle moment; the oldest are forgotten

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class _CacheHit:
    rank: int
    request_id: str
    cache_salt: str | None
    token_ids: list[int]
    media: tuple[Media, ...]
    rows: tuple[Rows, ...]

    @classmethod
    def of(cls, rank: int, request: Request) -> Self:
        """Describe the hit of a request that has not ended: an ended one has dropped the rows of its media."""
        given, count = request.given, request.num_cached_tokens
        begun = [part for part in given.media if part.start < count]
        media = [dataclasses.replace(part, length=min(part.length, count - part.start)) for part in begun]
        rows = request.rows[: len(media)]
        return cls(rank, given.request_id, given.options.cache_salt, given.prompt_ids[:count], tuple(media), rows)


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    """A check under way: the cached pages, held by their node, and the request that computes them again."""

    hit: _CacheHit
    cached: Prefix
    request: Request

    @property
    def pairs(self) -> list[list[tuple[int, int]]]:
        """For each block table, pairs of a page that was computed again and the cached page that a hit would use."""
        request, cached = self.request, self.cached
        keeps_all = any(request.pages)
        pairs = [list(zip(request.pages, cached.pages, strict=False))] if keeps_all else []
        for held, places in zip(request.windows, cached.windows, strict=True):
            first = len(cached.pages) - len(places) - held.start
            fresh = list(held.own)[first : first + len(places)]
            found = [place.ids for place in places]
            pairs += [
                [(own[table], ids[table]) for own, ids in zip(fresh, found, strict=True)]
                for table in range(len(held.group.tables))
            ]
        return pairs

    @property
    def slots(self) -> tuple[int, int]:
        """The request's, and that of the snapshot that a hit would begin with, if it is there still: it is not held."""
        node = self.cached.node
        return (self.request.slot, node.snapshot) if node is not None and node.snapshot else (0, 0)


class _Difference(Protocol):
    """Compares pages and slots of a rank, as `ModelRunner.page_difference` does."""

    def __call__(self, rank: int, pairs: Sequence[Sequence[tuple[int, int]]], slots: tuple[int, int]) -> float: ...


class CacheSelfCheck:
    """Driven by the engine core: `note` what was hit, `start` when idle, `compare` when a batch has been read; and
    `give_way` before each step.

    Args:
        rate: share of the hits to check.
        page_difference: of pairs of a rank's pages, and of the states of two slots.

    Attributes:
        num_checks, num_failures: since the engine started.
    """

    def __init__(
        self,
        rate: float,
        scheduler: EngineScheduler,
        page_difference: _Difference,
        seed: int,
    ) -> None:
        self.num_checks = 0
        self.num_failures = 0
        self._rate = rate
        self._scheduler = scheduler
        self._page_difference = page_difference
        self._random = random.Random(seed)
        self._serial = itertools.count()
        self._pending: collections.deque[_CacheHit] = collections.deque(maxlen=MAX_PENDING)
        self._running: _Running | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self._running is not None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def note(self, step: ScheduledStep) -> None:
        """Remembers some of the requests that begin in this step after a cached prefix."""
        if not self._rate:
            return
        for rank, batch in step.parts:
            for row in batch.rows:
                request = row.request
                hit = 0 < request.num_cached_tokens == row.start and not row.decodes
                is_first = request.num_retractions == 0 and request.status is RequestStatus.RUNNING
                if hit and is_first and self._random.random() < self._rate:
                    self._pending.append(_CacheHit.of(rank, request))

    def start(self) -> None:
        """Queues the recomputation of one remembered hit, if it is still cached and there is room for a second copy."""
        if self._running is not None or not self._pending:
            return
        hit = self._pending.popleft()
        scheduler = self._scheduler.schedulers[hit.rank]
        cache = scheduler.cache
        params = SamplingParams(max_tokens=0, temperature=0.0, seed=0)
        name = f"cache self-check {next(self._serial)}"
        options = RequestOptions(cache_salt=hit.cache_salt)
        message = GenerationRequest(name, hit.token_ids, params, (), 0.0, options, media=hit.media)
        request = Request.of(message, shares_prefix=False, rows=hit.rows)
        size = cache.page_size
        cached = cache.find_pages(request, len(hit.token_ids) // size)
        if len(cached.pages) * size < len(hit.token_ids) or cache.num_available_columns < 2 * len(cached.pages) + 1:
            return
        cache.hold(cached)
        self._running = _Running(hit, cached, request)
        scheduler.add(request)

    def compare(self, step: ScheduledStep) -> None:
        """Called when a step has run, before its requests give up their pages."""
        running = self._running
        if running is None:
            return
        batch = step.batches[running.hit.rank]
        if batch is None or not any(row.request is running.request and row.samples for row in batch.rows):
            return
        if running.request.num_retractions:
            return  # its pages are others' now, see give_way
        error = self._page_difference(running.hit.rank, running.pairs, running.slots)
        self._release(running)
        self.num_checks += 1
        if error > TOLERANCE:
            self.num_failures += 1
            logger.error(
                "Prefix cache self-check failed: the cached keys and values of request %s differ by %.0f %% from a "
                "recomputation of its first %d tokens. The prefix cache is now disabled. Please report this bug",
                running.hit.request_id.partition("~")[0],
                100 * error,
                len(running.hit.token_ids),
            )
            self._pending.clear()
            for scheduler in self._scheduler.schedulers:
                scheduler.cache.disable_sharing()

    def give_way(self) -> None:
        """Ends a check whose request was retracted: what it holds of the cache may be just what others lack."""
        if self._running is not None and self._running.request.num_retractions:
            self.cancel()

    def cancel(self) -> None:
        """Ends a check under way without a result."""
        if self._running is not None:
            self._scheduler.abort(self._running.request.given.request_id)
            self._release(self._running)

    def _release(self, running: _Running) -> None:
        self._scheduler.schedulers[running.hit.rank].cache.let_go(running.cached)
        self._running = None
