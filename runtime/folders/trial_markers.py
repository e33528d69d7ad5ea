"""Marker files of kernel trials: they outlive a process that hangs or is killed in a trial.

A marker exists from just before a trial to just after it, and its process holds a lock on it. So a marker that can be
locked was left by a process that has ended in a trial.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".running"


@dataclasses.dataclass(frozen=True, slots=True)
class LeftMarker:
    """A marker whose process has ended.

    Attributes:
        path: the file.
        kernel: name of the kernel, as in its trial.
    """

    path: Path
    kernel: str


@contextlib.contextmanager
def trial_marker(folder: Path, key: str, kernel: str) -> Iterator[None]:
    """Keep a marker while the body runs; whatever the body raises, the marker goes.

    Args:
        folder: where markers are; made if it is not there.
        key: of the trial; letters and digits.
        kernel: name of the kernel.

    Raises:
        OSError: no file can be made there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.{_owner(os.getpid())}.{secrets.token_hex(4)}{_SUFFIX}"
    new = path.with_suffix(".new")  # without a lock it would look left
    with new.open("x", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(kernel)
        file.flush()
        os.fsync(file.fileno())  # a device that hangs may take the host with it
        new.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def left_markers(folder: Path, key: str) -> list[LeftMarker]:
    """Return the markers of a trial whose processes have ended, the oldest first. Those of running processes are no
    concern of others: each tries for itself.

    Args:
        key: of the trial.
    """
    found = []
    for path in sorted(folder.glob(f"{key}.*{_SUFFIX}")):
        with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(LeftMarker(path, file.read()))
    return found


class ProcessMarkers:
    """The markers that a process of this host makes, and has not removed, whether it still runs or not.

    Args:
        folder: where markers are; None: nowhere.
        process: its pid; it has made none yet. Older ones are of a process that had the same pid.
    """

    def __init__(self, folder: Path | None, process: int) -> None:
        self._folder = folder
        self._pattern = f"*.{_owner(process)}.*{_SUFFIX}"
        self._older = frozenset(self._paths())

    def found(self) -> list[LeftMarker]:
        """Return them, the oldest first."""
        found = []
        for path in self._paths():
            with contextlib.suppress(OSError):
                if path not in self._older:
                    found.append(LeftMarker(path, path.read_text(encoding="utf-8")))
        return found

    def remove(self) -> None:
        """Remove them: the process is ended on purpose, so they say nothing about a kernel."""
        for marker in self.found():
            with contextlib.suppress(OSError):
                marker.path.unlink()

    def _paths(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob(self._pattern))


def _owner(process: int) -> str:
    """Return the name of a process of this host: hosts and containers may share the folder."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())}-{process}"
