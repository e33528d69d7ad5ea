"""Heartbeat: renews this server's lease, and notifies it when a transaction of another server has something new."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable

import psycopg

from palladio.http.storage.postgresql.postgresql_limits import StatementLimits
from palladio.http.storage.postgresql.postgresql_session import CHANGED, LOST, Connector, Session

CHANNEL = "palladio"

_RENEWALS = 4  # of a lease while it lasts
_PAUSE = 1.0  # seconds before a new connection
_ANSWER = 10.0  # seconds for a renewal; a database that takes longer is as good as gone

logger = logging.getLogger(__name__)


class Heartbeat:
    """A connection in a thread of its own. Subscribers are also notified when the database can be used again.

    Args:
        lease: seconds that one lasts.
        renew: renews it; called with the connection.

    Attributes:
        trouble: why the database cannot be used now; None: it can, as far as this connection knows, which notices at
            once when the database's server ends.
    """

    def __init__(
        self, connector: Connector, lease: float, renew: Callable[[Session], None], limits: StatementLimits
    ) -> None:
        self._connector = connector
        self._limits = limits
        self._interval = lease / _RENEWALS
        self._renew = renew
        self._subscribers: list[Callable[[], None]] = []
        self._is_closed = False
        self.trouble: psycopg.Error | None = None
        self._ended, self._end = os.pipe()  # readable: close was called
        self._thread = threading.Thread(target=self._run, name="database-heartbeat", daemon=True)
        self._thread.start()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._subscribers.append(wake)

    def close(self) -> None:
        """The lease is not renewed any more. A second call does nothing."""
        self._subscribers.clear()
        if self._is_closed:
            return
        self._is_closed = True
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)

    def _run(self) -> None:
        is_ended = False
        while not is_ended:
            try:
                with self._connector.connect(autocommit=True) as session:
                    with self._limits.limit(session, _ANSWER):
                        session.execute(f"LISTEN {CHANNEL}")
                    self._beat(session)
                    self._wake()  # of what came in between, and for who waits for the database
                    while not (is_ended := self._wait(session)):
                        self._beat(session)
            except (*LOST, *CHANGED) as error:
                self.trouble = error
                logger.debug("No heartbeat of the database %s", self._connector.explain(error))
                is_ended = bool(select.select([self._ended], [], [], _PAUSE)[0])

    def _beat(self, session: Session) -> None:
        with self._limits.limit(session, _ANSWER):
            self._renew(session)
        self.trouble = None

    def _wait(self, session: Session) -> bool:
        """For the time to renew the lease; passes news on meanwhile. Returns whether this has ended."""
        until = time.monotonic() + self._interval
        while (rest := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._ended, session], [], [], rest)
            if self._ended in ready:
                return True
            if session in ready and list(session.notifies(timeout=0)):
                self._wake()
        return False

    def _wake(self) -> None:
        for wake in list(self._subscribers):
            wake()
