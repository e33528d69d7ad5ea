"""Counts what XLA compiles in this process."""

import collections
import threading
from typing import Any, NamedTuple

import jax

_CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCount(NamedTuple):
    """Attributes:
    compiles: programs built by XLA or loaded from the persistent cache. cache_hits: of them, the latter.
    """

    compiles: int
    cache_hits: int


class CompileMonitor:
    """Counts what XLA compiles in this process, from jax's own events, which come in the thread that compiles."""

    def __init__(self) -> None:
        self._compiles: collections.Counter[int] = collections.Counter()
        self._cache_hits: collections.Counter[int] = collections.Counter()
        jax.monitoring.register_event_listener(self._on_event)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def count_here(self) -> CompileCount:
        """Compilations in the calling thread."""
        thread = threading.get_ident()
        return CompileCount(self._compiles[thread], self._cache_hits[thread])

    def compiles_here(self) -> int:
        """The same, without cache hits: engines ask twice a step."""
        return self._compiles.get(threading.get_ident(), 0)

    def _on_event(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT_EVENT:
            self._cache_hits[threading.get_ident()] += 1

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE_EVENT:
            self._compiles[threading.get_ident()] += 1
