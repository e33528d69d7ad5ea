"""GrammarChecker: measures in a process of its own what a grammar takes to compile, before this one compiles it."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.check_protocol import CheckLimits, receive_frame, send_frame
from palladio.runtime.interface.errors import InvalidRequestError, Message, OverloadedError
from palladio.runtime.interface.request.grammar_spec import Grammar

_EXTRA_SECONDS = 20.0  # that an answer may take over its CPU time, on a busy machine or while the process starts
_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]\n"
    "from palladio.runtime.grammar.check_process import main; main(int(sys.argv[1]))"
)


class TooExpensiveError(Exception):
    """Compiling the grammar took more than it may."""


class Checker(Protocol):
    """Checks what grammars take to compile. Thread-safe."""

    def check(self, grammar: Grammar, limits: CheckLimits) -> int:
        """Return the bytes that the grammar holds when it is compiled.

        Raises:
            InvalidRequestError: the grammar is refused.
            TooExpensiveError: it takes more than the limits.
            OverloadedError: no answer came in time.
        """

    def close(self) -> None: ...


class GrammarChecker:
    """A Checker in a process, which starts with the first check, and again after it has ended.

    Args:
        load: what the backend is made of; called in the thread that asks first.
    """

    def __init__(self, load: Callable[[], BackendSettings]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None: there is none."""
        return None if self._process is None else self._process.pid

    def check(self, grammar: Grammar, limits: CheckLimits) -> int:
        """Check the grammar in a fork of the process; see `Checker.check` for the result and errors.

        Raises:
            RuntimeError: the process does not start.
        """
        for _ in range(2):  # the process may have ended since
            connection, control = self._connect()
            with connection:
                connection.settimeout(_EXTRA_SECONDS + limits.cpu_seconds)
                try:
                    message = (grammar.kind, grammar.text, grammar.parts, dataclasses.astuple(limits))
                    send_frame(connection, message)
                    receive_frame(connection)
                except TimeoutError:
                    raise OverloadedError("Too many grammars are being compiled; try again later") from None
                except (EOFError, OSError):
                    self._drop(control)
                    continue
                return _answer(connection, limits)
        raise RuntimeError("the process that checks grammars ends before it answers; see its messages above")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
        self._drop(self._control)

    def _connect(self) -> tuple[socket.socket, socket.socket]:
        """A connection to a child of the process, which starts if there is none; and the socket that led to it."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._control is None:
                self._start()
            control = self._control
            assert control is not None
            with contextlib.suppress(OSError):  # it has ended, as `ours` will show
                socket.send_fds(control, [b"g"], [theirs.fileno()])
        return ours, control

    def _start(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        settings = dataclasses.asdict(self._load())
        self._control, theirs = socket.socketpair()
        with theirs:
            paths = [path or os.getcwd() for path in sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(theirs.fileno()), *paths],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in a terminal is for the front
            )
        with contextlib.suppress(OSError):
            send_frame(self._control, settings)

    def _drop(self, control: socket.socket | None) -> None:
        """End the process behind this socket, if it is the present one; checks of its children go on."""
        with self._lock:
            if control is None or control is not self._control:
                return
            control.close()
            self._control = None
            assert self._process is not None
            self._process.kill()
            self._process.wait()
            self._process = None


def _answer(connection: socket.socket, limits: CheckLimits) -> int:
    try:
        answer = receive_frame(connection)
    except TimeoutError:
        raise OverloadedError("Too many grammars are being compiled; try again later") from None
    except (EOFError, OSError):
        raise TooExpensiveError from None
    if "error" in answer:
        raise InvalidRequestError(Message(tuple(answer["error"])), param=answer["param"])
    num_bytes = int(answer["num_bytes"])
    if num_bytes > limits.num_bytes:
        raise TooExpensiveError
    return num_bytes
