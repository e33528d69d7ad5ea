"""Marker files of kernel trials: they outlive a process that hangs or is killed in a trial.

A marker exists from just before a trial to just after it, and its process holds a lock on it. So a marker that can be
locked was left by a process that has ended in a trial.
"""

import contextlib
import dataclasses
import fcntl
import os
import secrets
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
    path = folder / f"{key}.{os.getpid()}.{secrets.token_hex(4)}{_SUFFIX}"
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


def markers_of(folder: Path, process: int) -> list[LeftMarker]:
    """Return the markers that a process of this host has made and not removed, whether it runs or not.

    Args:
        process: its pid.
    """
    found = []
    for path in sorted(folder.glob(f"*.{process}.*{_SUFFIX}")):
        with contextlib.suppress(OSError):
            found.append(LeftMarker(path, path.read_text(encoding="utf-8")))
    return found


def remove_markers_of(folder: Path, process: int) -> None:
    """Remove a process's markers: it is ended on purpose, so they say nothing about a kernel.

    Args:
        process: its pid.
    """
    for marker in markers_of(folder, process):
        with contextlib.suppress(OSError):
            marker.path.unlink()
