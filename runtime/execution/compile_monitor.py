"""What XLA compiles, counted by thread, and JAX's persistent cache of it."""

import collections
import logging
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from palladio.runtime.folders.private_folder import warn_of_others

logger = logging.getLogger(__name__)

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
        """Of the thread that asks."""
        thread = threading.get_ident()
        return CompileCount(self._compiles[thread], self._cache_hits[thread])

    def _on_event(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT_EVENT:
            self._cache_hits[threading.get_ident()] += 1

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE_EVENT:
            self._compiles[threading.get_ident()] += 1


def use_persistent_cache(directory: Path | None) -> None:
    """Keeps compiled programs in `directory` for later starts; None, or where nothing can be made: nowhere.

    Every program is kept, however quick its compilation: a warm start should compile nothing.
    """
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            warn_of_others(directory, "--compilation-cache-dir")  # who writes there chooses what the device runs
        except OSError as error:
            logger.warning(
                "The compilation cache is off, so every start compiles all programs: %s; set --compilation-cache-dir "
                "to a writable directory",
                error,
            )
            directory = None
    wanted = (directory is not None, None if directory is None else str(directory))
    options = jax.config.values
    before = (options["jax_enable_compilation_cache"], options["jax_compilation_cache_dir"])
    if before not in (wanted, (True, None)):  # jax looks at them once, and an engine before this one set others
        compilation_cache.reset_cache()
    if directory is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
