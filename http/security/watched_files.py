"""FileWatch: whether files have changed since they were last read, so that keys and certificates can be renewed."""

import os
import time
from collections.abc import Callable, Sequence

INTERVAL = 1.0  # seconds between two looks: a look costs microseconds, and renewals are rare

Signature = tuple[int, int, int, int]


class FileWatch:
    """
    Args:
        paths: the files; links are followed, so exchanging one (as Kubernetes does with secrets) is a change.
        clock: seconds.
    """

    def __init__(self, paths: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._clock = clock
        self._seen = self._look()
        self._next = clock() + INTERVAL

    def changed(self) -> bool:
        """Whether they have changed since this last said so. Looks once an INTERVAL at most, else it is False."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + INTERVAL
        found = self._look()
        if found == self._seen:
            return False
        self._seen = found
        return True

    def _look(self) -> list[Signature | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> Signature | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
