"""JAX's cache of compiled programs, in a directory or at a URL."""

import importlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from palladio.runtime.folders.private_folder import warn_of_others

logger = logging.getLogger(__name__)
_NEVER = 1e9  # seconds that no compilation takes


def use_persistent_cache(place: Path | str | None) -> None:
    """Keep compiled programs for later starts; where nothing can be kept, log one warning and keep nothing.

    Every program is kept, however quick its compilation: a warm start should compile nothing.

    Args:
        place: a directory, a URL, which jax opens with etils, or None for no cache.
    """
    is_kept = True
    if place is not None:
        problem = _url_problem(place) if isinstance(place, str) else _directory_problem(place)
        if problem is None and isinstance(place, Path):
            is_kept = _can_be_written(place)
        if problem is not None:
            logger.warning("The compilation cache is off, so every start compiles all programs: %s", problem)
            place = None
    wanted = (place is not None, None if place is None else str(place))
    options = jax.config.values
    before = (options["jax_enable_compilation_cache"], options["jax_compilation_cache_dir"])
    if before not in (wanted, (True, None)):  # jax looks at them once, and an engine before this one set others
        compilation_cache.reset_cache()
    if place is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if is_kept else _NEVER)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _directory_problem(directory: Path) -> str | None:
    """Make the directory and look into it; None: it can be read."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        warn_of_others(directory, "--compilation-cache-dir")  # who writes there chooses what the device runs
        next(directory.iterdir(), None)
    except OSError as error:
        return f"{error}; set --compilation-cache-dir to a writable directory"
    return None


def _can_be_written(directory: Path) -> bool:
    """Try a file; if there can be none, log one warning, where jax would log one for each program."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError as error:
        logger.warning("The compilation cache is read, but programs that it lacks are not kept: %s", error)
        return False


def _url_problem(url: str) -> str | None:
    """Try a URL; None: it can be written."""
    try:
        epath: Any = importlib.import_module("etils.epath")
    except ImportError as error:
        return (
            f"--compilation-cache-dir {url} needs the package etils ({error}): pip install 'palladio-serve[cache-url]'"
        )
    try:
        folder = epath.Path(url)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "palladio-can-write"
        probe.write_bytes(b"1")
        probe.read_bytes()
    except Exception as error:  # noqa: BLE001 - each library of an object store has errors of its own
        return f"--compilation-cache-dir {url}: {type(error).__name__}: {error}"
    return None
