"""The engine's process, and how a command starts it before its own modules are imported. Imports nothing that takes
time."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

ENGINE_CORE: Final = "palladio.runtime.core.engine_core:EngineCore.create"  # by name: naming it must not import jax


def spawn(environment: Mapping[str, str], *imported: str) -> "subprocess.Popen[bytes]":
    """Starts the process, which then waits for its first line.

    Args:
        environment: variables that it gets in addition to this process's own.
        imported: what it imports before that, as `module:attribute.path`.

    Raises:
        OSError: no process can be made.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "palladio.runtime.process.engine_main", *imported],
        stdin=subprocess.PIPE,
        stdout=2,  # what libraries print goes to our stderr too
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        start_new_session=True,  # Ctrl-C in the terminal is for the front, which then decides
    )


class EarlyEngine:
    """An engine's process that imports jax and the engine while the front's process imports what it needs: one after
    the other would take a second longer.

    Args:
        environment: as of `spawn`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # who starts the engine tries again, and says why
            self._process = spawn(environment, ENGINE_CORE)

    def take(self) -> "subprocess.Popen[bytes] | None":
        """The process, which is the caller's from now on; None: it has been taken, or has ended."""
        process, self._process = self._process, None
        return None if process is None or process.poll() is not None else process

    def close(self) -> None:
        """Ends it, unless it has been taken."""
        process = self.take()
        if process is not None:
            process.kill()
            process.communicate()
