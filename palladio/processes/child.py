"""A command's work in a process of its own: jax is imported there, and not in the command line's."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from palladio.processes.early_signals import INTERRUPTED


def run_module(module: str, *arguments: str, environment: Mapping[str, str], request: object = None) -> int:
    """Runs one of our modules, and waits for its end.

    Args:
        environment: of the process, but for where modules are found.
        request: what it reads from its standard input, as JSON; None: it has this process's.

    Returns:
        Its exit code; 1 if a signal ended it, and 130 after Ctrl-C.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    words = None if request is None else msgspec.json.encode(request)
    env = {**environment, "PYTHONPATH": python_path()}
    try:
        status = run_process(command, env, words)
    except KeyboardInterrupt:  # the child has had it too
        return INTERRUPTED
    return status if status >= 0 else 1


def run_process(command: Sequence[str], environment: Mapping[str, str], words: bytes | None) -> int:
    """Its exit code, once it has ended; what is raised meanwhile, by a signal's handler too, kills it.

    Args:
        words: its standard input; None: this process's.
    """
    with contextlib.ExitStack() as at_end:
        with _signals_wait():
            pipe = None if words is None else subprocess.PIPE
            child = at_end.enter_context(subprocess.Popen(command, stdin=pipe, env=environment))
            at_end.callback(child.kill)  # which does nothing to one that has ended
        child.communicate(words)
    return child.returncode


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay SIGINT and SIGTERM: a handler that raises in the constructor of Popen would leave a child that no code can
    end."""
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}  # nohup
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def python_path() -> str:
    """PYTHONPATH with which another process finds the modules that this one finds."""
    return os.pathsep.join(folder or os.getcwd() for folder in sys.path)
