"""PostgresqlDatabase: a server that many hosts share, in a few threads with a connection each (extra `postgres`).

Threads and plain connections, not coroutines: a transaction is one function for both kinds of database, and a caller
that goes away cannot leave one open.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import logging
import math
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import psycopg

from palladio.http.storage.postgresql.postgresql_heartbeat import CHANNEL, Heartbeat
from palladio.http.storage.postgresql.postgresql_limits import StatementLimits
from palladio.http.storage.postgresql.postgresql_locks import Locks
from palladio.http.storage.postgresql.postgresql_schema import of_postgresql
from palladio.http.storage.postgresql.postgresql_session import (
    CHANGED,
    DATABASE_AWAY,
    LOST,
    RETRY_AFTER,
    TABLES_GONE,
    Connector,
    Session,
)
from palladio.http.storage.records.database import Connection, Cursor, outlasting
from palladio.http.storage.records.disk_errors import code_of
from palladio.http.storage.records.store import identity_of
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError

T = TypeVar("T")

COMMIT_UNKNOWN = ErrorBody(
    503,
    "the connection to the database of --database-url was lost at the last moment, so the change may have been made "
    "or not: look, then send the request again",
    code="database_unavailable",
    headers={"Retry-After": str(RETRY_AFTER)},
)
DATABASE_FULL = ErrorBody(
    507, "the disk of the database (--database-url) is full: free some space there", code="storage_full"
)

_ATTEMPTS = 6  # at a transaction: deadlocks, and connections that turn out to be dead
_LOG_AGAIN = 60.0  # seconds before the log repeats an error about missing tables
_ANSWER = 30.0  # seconds for a statement, or a commit
_ANSWER_AWAY = 5.0  # the same, while the heartbeat finds no database
_QUIET = 1.0  # seconds after a failed connection in which no new one is tried: requests fail at once
_SCHEMA_LOCK = 0x70616C6C6164696F  # "palladio", as a number: held while tables are made
_AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_NO_LIMIT = contextlib.nullcontext[None]
_VERSION = """
CREATE TABLE IF NOT EXISTS palladio_schema (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
)
"""
_CLOCK = "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"

# A server treats ended leases of others as dead servers only from judges_from to judges_until, half a lease after its
# own last renewal. All renew every quarter of a lease, so in an outage of the database it stops before any lease ends.
# After a gap it gives the others a whole lease to come back. A new server knows only the gap before PostgreSQL's start.
_RENEW = f"""
WITH moment AS (SELECT {_CLOCK} AS now)
INSERT INTO servers (id, lease_until, judges_from, judges_until)
SELECT %(server)s, now + %(lease)s, extract(epoch FROM pg_postmaster_start_time()) + %(lease)s, now + %(lease)s / 2
FROM moment
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until, judges_until = excluded.judges_until,
judges_from = CASE WHEN excluded.lease_until - %(lease)s <= servers.judges_until
    THEN servers.judges_from ELSE excluded.lease_until END
RETURNING lease_until - %(lease)s AS now
"""

logger = logging.getLogger(__name__)


class _Transaction:
    for_update: ClassVar[str] = "FOR NO KEY UPDATE"  # rows that refer to these are no hindrance
    skip_locked: ClassVar[str] = "FOR UPDATE SKIP LOCKED"
    clock: ClassVar[str] = _CLOCK

    def __init__(self, session: Session, limit: Callable[[], AbstractContextManager[None]] = _NO_LIMIT) -> None:
        """Begin to use a session.

        Args:
            limit: limits the time of each statement.
        """
        self._session = session
        self._limit = limit

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        with self._limit():
            cursor: Cursor = self._session.execute(_translated(statement), _plain(values), binary=True)
        return cursor

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        with self._limit(), self._session.cursor() as cursor:
            cursor.executemany(_translated(statement), [_plain(row) for row in rows])
        return None

    def notify(self) -> None:
        with self._limit():
            self._session.execute(f"NOTIFY {CHANNEL}")  # PostgreSQL sends it with the commit


class PostgresqlDatabase:
    """
    Args:
        num_connections: for transactions. Two more are for locks and for the heartbeat.
        lease: seconds for which this server counts as alive after a sign of life.

    Attributes:
        identity: of the tables; other databases have others.

    Raises:
        ConfigError: it cannot be reached, or has tables of a later version.
    """

    is_shared = True

    def __init__(
        self, url: SecretUrl, schema: str, changes: Sequence[str], num_connections: int = 4, lease: float = 60.0
    ) -> None:
        self.server = uuid.uuid4().hex
        self.failures: collections.Counter[str] = collections.Counter()
        self._lease = lease
        self._connector = Connector(url)
        self._threads = concurrent.futures.ThreadPoolExecutor(num_connections, thread_name_prefix="database")
        self._sessions: dict[int, Session] = {}  # by thread
        self._quiet_until = 0.0
        self._away_since: float | None = None
        self._logged: dict[str, float] = {}  # error about missing tables → when it was logged last
        self._clock_offset = 0.0  # of the shared clock, from this process's monotonic one
        try:
            with self._connector.connect() as session:
                self.identity = _make_tables(session, schema, changes)
                self._renew(session)
        except psycopg.Error as error:
            raise ConfigError(f"--database-url {self._connector.explain(error)}") from None
        self._limits = StatementLimits()
        self._locks = Locks(self._connector, self.identity, self._limits)
        self._heartbeat = Heartbeat(self._connector, lease, self._renew, self._limits)

    @property
    def is_away(self) -> bool:
        return self._heartbeat.trouble is not None

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await outlasting(self._threads.submit(self._transact, work))

    def check(self) -> None:
        trouble = self._heartbeat.trouble
        if trouble is None and time.monotonic() >= self._quiet_until:
            return
        error = HttpError(TABLES_GONE if isinstance(trouble, CHANGED) else DATABASE_AWAY)
        self.note_failure(code_of(error))
        raise error

    def note_failure(self, code: str) -> None:
        self.failures[code] += 1

    def now(self) -> float:
        return time.monotonic() + self._clock_offset

    @contextlib.asynccontextmanager
    async def exclusive(self, name: str) -> AsyncGenerator[bool, None]:
        taking = self._locks.take(name)
        try:
            is_ours = await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(lambda taken: self._locks.leave(name) if _is_true(taken) else None)
            raise
        try:
            yield is_ours
        finally:
            if is_ours:
                self._locks.leave(name)

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._heartbeat.subscribe(wake)

    def close(self) -> None:
        self._heartbeat.close()
        leave = self._threads.submit(self._transact, self._sign_off)
        self._threads.shutdown()
        if isinstance(error := leave.exception(), HttpError):  # others wait until the lease ends
            logger.error("This server could not be signed off: %s", error)
        self._locks.close()
        for session in self._sessions.values():
            session.close()
        self._limits.close()

    def _limit(self, session: Session) -> AbstractContextManager[None]:
        return self._limits.limit(session, _ANSWER_AWAY if self.is_away else _ANSWER)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        for _ in range(_ATTEMPTS):
            session = self._session()
            try:
                try:
                    result = work(_Transaction(session, functools.partial(self._limit, session)))
                except BaseException:
                    with self._limit(session):
                        session.rollback()
                    raise
            except psycopg.errors.DiskFull as error:
                self._say_unavailable(error)
                raise HttpError(DATABASE_FULL) from None
            except CHANGED as error:
                self._say_changed(error)
                raise HttpError(TABLES_GONE) from None
            except LOST as error:  # nothing of it has been committed
                last = error
                if not isinstance(error, _AGAIN):
                    self._drop(session)
            else:
                self._commit(session)
                return result
        self._say_unavailable(last)
        raise HttpError(DATABASE_AWAY) from None

    def _commit(self, session: Session) -> None:
        try:
            with self._limit(session):
                session.commit()
        except LOST as error:
            self._drop(session)
            self._say_unavailable(error)
            raise HttpError(COMMIT_UNKNOWN) from None

    def _session(self) -> Session:
        """This thread's. Raises HttpError: the database cannot be reached."""
        found = self._sessions.get(threading.get_ident())
        if found is not None and not found.closed:
            return found
        if time.monotonic() < self._quiet_until:
            raise HttpError(DATABASE_AWAY)
        try:
            session = self._connector.connect()
        except psycopg.OperationalError as error:
            self._quiet_until = time.monotonic() + _QUIET
            if self._away_since is None:
                self._away_since = time.monotonic()
                self._say_unavailable(error)
            raise HttpError(DATABASE_AWAY) from None
        if self._away_since is not None:
            logger.info("The database is back after %.0f s", time.monotonic() - self._away_since)
            self._away_since = None
        self._sessions[threading.get_ident()] = session
        return session

    def _drop(self, session: Session) -> None:
        with contextlib.suppress(psycopg.Error):
            session.close()
        del self._sessions[threading.get_ident()]

    def _say_unavailable(self, error: psycopg.Error) -> None:
        logger.error("The database cannot be used: %s", self._connector.explain(error))

    def _say_changed(self, error: psycopg.Error) -> None:
        """Log each error about changed tables, at most every _LOG_AGAIN seconds."""
        what, now = str(error).partition("\n")[0], time.monotonic()
        if now >= self._logged.get(what, -math.inf) + _LOG_AGAIN:
            self._logged[what] = now
            remedy = "restore the tables, or the rights, from a backup; this server goes on by itself then"
            logger.error("The database %s was changed while this server ran: %s: %s", self._connector.url, what, remedy)

    def _renew(self, session: Session) -> None:
        """Renews the lease, and looks at the shared clock. The database answers, so others may ask it, too."""
        begun = time.monotonic()
        found = session.execute(_RENEW, {"server": self.server, "lease": self._lease})
        self._clock_offset = found.fetchall()[0]["now"] - (begun + time.monotonic()) / 2
        self._quiet_until = 0.0

    def _sign_off(self, connection: Connection) -> None:
        """Frees what this server has claimed, without a wait for the end of its lease."""
        connection.execute("DELETE FROM servers WHERE id = ?", (self.server,))
        connection.notify()


def _make_tables(session: Session, schema: str, changes: Sequence[str]) -> str:
    """Makes what is missing, and returns the tables' identity. Of servers that start at once, one does it.

    Raises:
        ConfigError: the tables are of a later version.
    """
    execute = _Transaction(session).execute
    execute("SELECT pg_advisory_xact_lock(?)", (_SCHEMA_LOCK,))
    execute(of_postgresql(_VERSION))
    execute("INSERT INTO palladio_schema VALUES (1, 0) ON CONFLICT DO NOTHING")
    row = execute("SELECT version FROM palladio_schema").fetchone()
    if row["version"] > len(changes):
        raise ConfigError("--database-url: its tables were made by a later version of this server")
    for script in (schema, *changes[row["version"] :]):
        session.execute(of_postgresql(script))  # several statements, and no values
    execute("UPDATE palladio_schema SET version = ?", (len(changes),))
    identity = identity_of(_Transaction(session))
    session.commit()
    return identity


def _translated(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _plain(values: Sequence[Any]) -> list[Any]:
    """Truth as numbers, which both kinds of database have. PostgreSQL's texts have no zero characters."""
    return [
        int(value) if isinstance(value, bool) else value.replace("\0", "\ufffd") if isinstance(value, str) else value
        for value in values
    ]


def _is_true(future: concurrent.futures.Future[bool]) -> bool:
    return future.exception() is None and future.result()
