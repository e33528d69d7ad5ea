"""What the engine says of itself when it is asked: statistics, and the requests that have not ended."""

import itertools
from collections.abc import Sequence

import jax

from palladio.runtime.core.plan.memory import bytes_in_use
from palladio.runtime.core.watch.cache_self_check import CacheSelfCheck
from palladio.runtime.core.watch.explain import explain_requests
from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.model_runner import ModelRunner
from palladio.runtime.interface.messages.engine_stats import (
    CompileStats,
    EngineStats,
    LiveRequest,
    MemoryReport,
    RankStats,
)
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.scheduling.policy.grammar_queue import GrammarQueue


class EngineReport:
    """Reads the engine's parts and changes nothing.

    Args:
        memory: of one device, as planned.
        observers: each adds what it knows.
    """

    def __init__(
        self,
        scheduler: EngineScheduler,
        runner: ModelRunner,
        grammars: GrammarQueue,
        self_check: CacheSelfCheck,
        memory: MemoryReport,
        observers: Sequence[StepObserver],
    ) -> None:
        self._scheduler = scheduler
        self._built = runner.programs.built
        self._grammars = grammars
        self._self_check = self_check
        self._memory = memory
        self._observers = observers
        self._device: jax.Device = runner.shape.mesh.devices.flat[0]

    def stats(self, *, check_integrity: bool, pages: bool) -> EngineStats:
        """Returns a snapshot, see GetStats."""
        is_still = not self._scheduler.num_running and not self._self_check.is_running
        stats = EngineStats(
            ranks=self._scheduler.stats(),
            unassigned=RankStats(num_waiting=len(self._grammars.waiting), num_waiting_tokens=self._grammars.num_tokens),
            integrity_error=self._integrity_error() if check_integrity and is_still else None,
            cache_enabled=self._scheduler.schedulers[0].cache.shares_prefixes,
            num_self_checks=self._self_check.num_checks,
            num_self_check_failures=self._self_check.num_failures,
            compile=CompileStats(len(self._built.declared), list(self._built.reports), self._built.lazy_seconds),
            memory=self._memory,
            memory_in_use=bytes_in_use(self._device),
            num_grammars=self._grammars.num_grammars,
            grammar_bytes=self._grammars.num_grammar_bytes,
            pages=self._scheduler.page_maps() if pages else [],
        )
        for observer in self._observers:
            stats = observer.add_to(stats)
        return stats

    def explain(self, request_ids: list[str]) -> list[LiveRequest]:
        """Return the states of these requests; ended ones are left out."""
        found = [explain_requests(scheduler, request_ids) for scheduler in self._scheduler.schedulers]
        requests = list(itertools.chain(*found, self._grammars.explain(request_ids)))
        for request in requests:
            for observer in self._observers:
                observer.add_to_request(request)
        return requests

    def _integrity_error(self) -> str | None:
        try:
            self._scheduler.check_integrity()
        except AssertionError as error:
            return str(error)
        return None
