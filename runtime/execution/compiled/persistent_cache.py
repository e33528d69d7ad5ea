"""JAX's cache of compiled programs, in a directory or at a URL."""

import contextlib
import importlib
import logging
import secrets
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
        folder = _at_url(place) if isinstance(place, str) else place
        problem = folder if isinstance(folder, str) else _folder_problem(folder)
        if problem is None:
            is_kept = _can_be_written(folder)
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


def _at_url(url: str) -> Any:
    """Return the folder at a URL, an etils path; a text: why there is none."""
    try:
        epath: Any = importlib.import_module("etils.epath")
    except ImportError as error:
        return (
            f"--compilation-cache-dir {url} needs the package etils ({error}): pip install '.[cache-url]' in the "
            "repository"
        )
    try:
        return epath.Path(url)
    except Exception as error:  # noqa: BLE001 - each library of an object store has errors of its own
        return f"--compilation-cache-dir {url}: {type(error).__name__}: {error}"


def _folder_problem(folder: Any) -> str | None:
    """Make the folder, a pathlib or etils path, and look into it; None: it can be read."""
    try:
        with contextlib.suppress(Exception):  # it may be there, and read only
            folder.mkdir(parents=True, exist_ok=True)
        if isinstance(folder, Path):
            warn_of_others(folder, "--compilation-cache-dir")  # who writes there chooses what the device runs
        next(iter(folder.iterdir()), None)
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}; set --compilation-cache-dir to a folder that can be read and written"
    return None


def _can_be_written(folder: Any) -> bool:
    """Try a file; if there can be none, log one warning, where jax would log one for each program."""
    probe = folder / f"palladio-can-write-{secrets.token_hex(4)}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except Exception as error:  # noqa: BLE001 - as above
        logger.warning("The compilation cache is read, but programs that it lacks are not kept: %s", error)
        return False
    return True
