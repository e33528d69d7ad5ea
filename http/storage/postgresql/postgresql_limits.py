"""StatementLimits: time limits of statements whose server stopped answering. A database that hangs, or a pooler that
has lost its connection to one, keeps connections open, and TCP finds nothing wrong with that."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import psycopg

from palladio.http.storage.postgresql.postgresql_session import Session

_LOOK = 0.5  # seconds between checks of the statements that wait


class StatementLimits:
    """Shuts down connections that wait for too long: the statement then fails as if the database had gone.

    A thread of its own checks them, because the threads that wait cannot.
    """

    def __init__(self) -> None:
        self._waits: dict[object, tuple[float, Session]] = {}  # time limit and connection of each wait
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database-limits", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def limit(self, session: Session, seconds: float) -> Iterator[None]:
        """Limit what is done within with this connection to `seconds`."""
        key = object()
        with self._lock:
            self._waits[key] = (time.monotonic() + seconds, session)
        try:
            yield
        finally:
            with self._lock:  # so it is not cut later, when its descriptor may be that of another connection
                del self._waits[key]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK):
            now = time.monotonic()
            with self._lock:
                for until, session in self._waits.values():
                    if now >= until:
                        _cut(session)


def _cut(session: Session) -> None:
    """Shut the connection down: the thread that reads from it finds its end."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(session.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
