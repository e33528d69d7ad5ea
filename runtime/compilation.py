"""Ahead-of-time compilation of a closed set of programs, through JAX's persistent cache."""

import concurrent.futures
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax

Key = TypeVar("Key", bound=Hashable)

logger = logging.getLogger(__name__)

_CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileMonitor:
    """Counts what XLA compiles in this process, from jax's own events.

    Attributes:
        num_compiles: programs built by XLA or loaded from the persistent cache.
        num_cache_hits: those loaded from the persistent cache.
    """

    def __init__(self) -> None:
        self.num_compiles = 0
        self.num_cache_hits = 0
        jax.monitoring.register_event_listener(self._on_event)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def _on_event(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT_EVENT:
            self.num_cache_hits += 1

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE_EVENT:
            self.num_compiles += 1


def use_persistent_cache(directory: Path | None) -> None:
    """Keeps compiled programs in `directory` for later starts; None, or where nothing can be made: nowhere.

    Every program is kept, however quick its compilation: a warm start should compile nothing.
    """
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning(
                "compiled programs are not kept, so each start compiles them again: %s; --compilation-cache-dir says "
                "where to keep them",
                error,
            )
            directory = None
    if directory is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@dataclasses.dataclass(frozen=True, slots=True)
class CompileReport:
    """Attributes:
    num_programs: compiled. seconds: wall time. cache_hits: of them, found in the persistent cache.
    """

    num_programs: int
    seconds: float
    cache_hits: int


class ProgramSet(Generic[Key]):
    """Programs by key. Added with the arguments they will be called with, then compiled all at once.

    A call with a key that was not added is a KeyError: after `compile` nothing is traced or compiled any more.
    """

    def __init__(self) -> None:
        self._pending: dict[Key, tuple[Any, tuple[Any, ...]]] = {}
        self._compiled: dict[Key, Callable[..., Any]] = {}

    def add(self, key: Key, jitted: Any, *args: Any) -> None:
        """Args: the jitted function, and its arguments (arrays or jax.ShapeDtypeStruct)."""
        assert key not in self._pending, f"{key} is added twice"
        self._pending[key] = (jitted, args)

    def __getitem__(self, key: Key) -> Callable[..., Any]:
        return self._compiled[key]

    def compile(self, monitor: CompileMonitor, progress: Callable[[int, int], None]) -> CompileReport:
        """Compiles everything added. Tracing holds Python's lock, so it is done here; XLA works in threads.

        Args:
            progress: called with (done, total) after each program.
        """
        start, hits, total = time.perf_counter(), monitor.num_cache_hits, len(self._pending)
        progress(0, total)
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
            futures = {pool.submit(jitted.lower(*args).compile): key for key, (jitted, args) in self._pending.items()}
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                self._compiled[futures[future]] = future.result()
                progress(done, total)
        self._pending.clear()
        return CompileReport(total, time.perf_counter() - start, monitor.num_cache_hits - hits)
