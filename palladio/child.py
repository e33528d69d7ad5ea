"""A command's work in a process of its own: jax is imported there, and not in the command line's."""

import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from palladio.early_signals import INTERRUPTED


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
        child = subprocess.run(command, input=words, env=env, check=False)
    except KeyboardInterrupt:  # the child has had it too
        return INTERRUPTED
    return child.returncode if child.returncode >= 0 else 1


def python_path() -> str:
    """PYTHONPATH with which another process finds the modules that this one finds."""
    return os.pathsep.join(folder or os.getcwd() for folder in sys.path)
