"""Builds every program of an engine ahead, without its weights, into the cache or into a directory of exports."""

import dataclasses
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from palladio.runtime.core.start.tried_plan import TriedPlan
from palladio.runtime.core.start.warmup import describe_programs
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub.hub import resolve_source

logger = logging.getLogger("palladio.engine")


def compile_ahead(config: EngineConfig) -> None:
    """Builds all programs that an engine of this config would, into the persistent cache; with --compiled-dir, into
    that directory instead.

    Raises:
        ConfigError: a flag, the model's config or its checkpoint is wrong, the device is too small, or the directory
            cannot be written.
    """
    if config.parallel.num_hosts > 1:
        raise ConfigError(
            "`palladio compile` runs on one host; omit --nnodes (multi-host servers compile when they start)"
        )
    directory = config.execution.compiled_dir
    if directory is not None:
        _check_writable(directory)
        config = dataclasses.replace(
            config, execution=dataclasses.replace(config.execution, compilation_cache_dir="")
        )  # what comes from there cannot be exported
    source = resolve_source(config.source, needs_weights=False)
    display = ProgressDisplay()
    # Kernels that fail here are left out by servers of the same kind, too.
    tried = TriedPlan(dataclasses.replace(config, source=source), on_progress=display.update, on_hung=_end_hung)
    design = tried.settle()
    for line in design.plan.table():
        logger.info(line)
    built, start = design.programs.built, time.perf_counter()
    keys = built.declared
    try:
        design.programs.build(keys, lambda: display.update(LoadProgress("compile", len(built), len(keys))))
    finally:
        display.close()
    for line in describe_programs(built.reports):
        logger.info(line)
    if design.store is not None:
        try:
            sizes = built.export(design.store)
            if design.plan.report.workspace:
                design.store.save_workspace(design.programs.buckets, design.plan.report.workspace)
        except OSError as error:
            raise _unwritable(directory, error) from error
        logger.info("Exported %d programs (%.1f MiB) to %s", len(sizes), sum(sizes) / 2**20, directory)
    seconds = time.perf_counter() - start
    logger.info("Compiled %d programs in %.1f s; a server with the same flags will load them", len(built), seconds)


def _end_hung(message: str) -> None:
    """End the process, whose main thread waits for a kernel."""
    logger.error("%s", message)
    sys.stderr.flush()
    os._exit(1)


def _check_writable(directory: str) -> None:
    """Before the minutes that compiling takes."""
    path = Path(directory).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: str | None, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to --compiled-dir {directory}: {error}")
