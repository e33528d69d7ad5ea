"""A host other than host 0: makes the same program calls as host 0, until host 0 ends it."""

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable

import jax

from palladio.runtime.core.start.startup import CallListener, build_executor
from palladio.runtime.core.weights.model_memory import ModelMemory, Order
from palladio.runtime.core.weights.weight_loader import WeightLoader
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import InvalidRequestError, PalladioError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.multihost.bootstrap import join
from palladio.runtime.telemetry.activity import Activity
from palladio.runtime.text.hub.hub import resolve_source

logger = logging.getLogger("palladio.engine")


def run_host_worker(config: EngineConfig, on_progress: Callable[[LoadProgress], None]) -> None:
    """Never returns: host 0 ends this process, with exit code 0; when a host is lost, it ends with 1.

    Raises:
        ConfigError: a flag, the model or its checkpoint is wrong here, or not what the other hosts have.
        HostLostError: host 0, or another one, is not there.
    """
    config = dataclasses.replace(config, source=resolve_source(config.source))
    worker, config = join(config, _end, on_progress)
    try:
        built = build_executor(config, on_progress, worker.smallest, CallListener(Activity(), None), _end)
        built.warm_up.go_on()
        logger.info(
            "Ready: host %d of %d waits for program calls from host 0",
            config.parallel.node_rank,
            config.parallel.num_hosts,
        )
        memory = ModelMemory(WeightLoader(built.design), built.executor, worker.smallest)
        for key, arrays in worker.calls(functools.partial(_obey, memory)):
            if key is None:
                built.executor.reset_state()
            elif arrays is None:
                built.executor.programs.built.ensure(ProgramKey(*key))
                worker.smallest(0)
            else:
                built.executor.call(ProgramKey(*key), *arrays)
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and not is_out_of_memory(error):
            worker.await_end()
        message = str(error) if isinstance(error, PalladioError) else f"{type(error).__name__}: {error}"
        worker.fail(message)
        raise


def _obey(memory: ModelMemory, order: Order, path: str) -> None:
    try:
        memory.obey(order, path)
    except InvalidRequestError as error:  # host 0 knows, and keeps its weights too
        logger.error("This host keeps its weights: %s", error)


def _end(message: str) -> None:
    """Whatever the main thread does: it may wait for a lost host for ever."""
    if message:
        logger.error("This host stops: %s", message)
    else:
        logger.info("Host 0 has stopped; this host stops too")
    sys.stderr.flush()
    os._exit(1 if message else 0)
