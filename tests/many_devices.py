"""Runs functions in a process that has eight CPU devices: how many there are is fixed before jax starts.

One such process a pytest process, kept from call to call: importing everything takes seconds of CPU time.
"""

import functools
import gc
import importlib
import os
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any

NUM_DEVICES = 8


def call_with_devices(module: str, name: str, *arguments: Any, timeout: float = 280) -> Any:
    """`module.name(*arguments)`, where there are `NUM_DEVICES`."""
    return _process().submit(_call, module, name, arguments).result(timeout)


def call_in_new_process(module: str, name: str, *arguments: Any, timeout: float = 280) -> Any:
    """The same, where no other call has left anything."""
    with _new_process() as process:
        return process.submit(_call, module, name, arguments).result(timeout)


@functools.cache
def _process() -> ProcessPoolExecutor:
    return _new_process()


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=_prepare)


def _prepare() -> None:
    """Before anything imports jax."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={NUM_DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"


def _end_with_parent() -> None:
    """However it ends: xdist's workers do not always say goodbye."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(module: str, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as error:  # pytest's own, too: not every one of them can be sent to another process
        raise AssertionError("".join(traceback.format_exception(error))) from None
    finally:
        gc.collect()  # engines with their weights
