"""SIGINT and SIGTERM before a command has handlers of its own: while modules are imported, the process ends at
once, without a traceback. Imports nothing that takes time: a process calls this first."""

import functools
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM
BROKEN_PIPE: Final = 128 + signal.SIGPIPE


def end_at_once(on_interrupt: int, on_terminate: int | None = None, first: Callable[[], None] | None = None) -> None:
    """From now on a signal ends this process with the exit status given.

    Args:
        on_terminate: None: SIGTERM ends it as it does any process, also in the middle of a long call of native code.
        first: ends the children, if there are any.
    """
    for number, status in ((signal.SIGINT, on_interrupt), (signal.SIGTERM, on_terminate)):
        if status is not None:
            _handle(number, functools.partial(_exit, status, first))


def raise_on_interrupt() -> None:
    """From now on SIGINT raises KeyboardInterrupt."""
    _handle(signal.SIGINT, signal.default_int_handler)


def raise_on_terminate() -> None:
    """From now on SIGTERM raises SystemExit, so that code that waits for a child ends it."""
    _handle(signal.SIGTERM, _terminate)


def _handle(number: int, handler: "signal._HANDLER") -> None:
    if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
        signal.signal(number, handler)


def _exit(status: int, first: Callable[[], None] | None, number: int, frame: FrameType | None) -> None:
    if first is not None:
        first()
    os._exit(status)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
