"""JAX's cache of compiled programs on disk."""

import logging
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from palladio.runtime.folders.private_folder import warn_of_others

logger = logging.getLogger(__name__)


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
