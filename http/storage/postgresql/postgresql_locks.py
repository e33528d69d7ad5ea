"""Locks: names that this process holds, among all that use the database."""

import concurrent.futures
import contextlib
import hashlib
import logging

import psycopg

from palladio.http.storage.postgresql.postgresql_limits import StatementLimits
from palladio.http.storage.postgresql.postgresql_session import DATABASE_AWAY, LOST, Connector, Session
from palladio.http.wire.errors import HttpError

_ANSWER = 30.0  # seconds

logger = logging.getLogger(__name__)


class Locks:
    """Advisory locks of one connection: PostgreSQL frees them when it ends, in whatever way.

    Args:
        space: names of other spaces are others.
    """

    def __init__(self, connector: Connector, space: str, limits: StatementLimits) -> None:
        self._connector = connector
        self._limits = limits
        self._space = space
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="database-locks")
        self._session: Session | None = None
        self._held: set[str] = set()  # PostgreSQL would give each a second time to the same connection

    def take(self, name: str) -> concurrent.futures.Future[bool]:
        """Whether it is this caller's now. Raises HttpError: the database cannot be reached."""
        return self._thread.submit(self._take, name)

    def leave(self, name: str) -> None:
        self._thread.submit(self._leave, name)

    def close(self) -> None:
        """Frees all."""
        self._thread.submit(self._forget).result()
        self._thread.shutdown()

    def _take(self, name: str) -> bool:
        if name in self._held:
            return False
        is_new = self._session is None or self._session.closed
        try:
            if self._session is None or self._session.closed:
                self._session = self._connector.connect(autocommit=True)
            with self._limits.limit(self._session, _ANSWER):
                found = self._session.execute("SELECT pg_try_advisory_lock(%s) AS ours", (self._key(name),)).fetchall()
        except LOST as error:
            self._forget()
            if not is_new:  # it ended since it was last used, maybe long ago: try a new one
                return self._take(name)
            logger.error("The database %s", self._connector.explain(error))
            raise HttpError(DATABASE_AWAY) from None
        if found[0]["ours"]:
            self._held.add(name)
        return bool(found[0]["ours"])

    def _leave(self, name: str) -> None:
        self._held.discard(name)
        if self._session is not None:
            try:
                with self._limits.limit(self._session, _ANSWER):
                    self._session.execute("SELECT pg_advisory_unlock(%s)", (self._key(name),))
            except LOST:
                self._forget()

    def _forget(self) -> None:
        """What the connection held is free. If others take it up, the last transaction of one of the two is refused."""
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session.close()
        self._session = None

    def _key(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._space}:{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)
