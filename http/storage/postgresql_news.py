"""News: tells this process when a transaction of another server has something new."""

import logging
import os
import select
import threading
from collections.abc import Callable

from palladio.http.storage.postgresql_session import LOST, Connector, Session

CHANNEL = "palladio"

_CLOCK_INTERVAL = 15.0  # seconds between looks at the database's clock
_PAUSE = 2.0  # seconds before a new connection

logger = logging.getLogger(__name__)


class News:
    """A connection that listens, in a thread of its own from the first subscription on.

    Args:
        look_at_clock: is called with the connection now and then.
    """

    def __init__(self, connector: Connector, look_at_clock: Callable[[Session], None]) -> None:
        self._connector = connector
        self._look_at_clock = look_at_clock
        self._subscribers: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._ended, self._end = os.pipe()  # readable: close was called

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._subscribers.append(wake)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="database-news", daemon=True)
            self._thread.start()

    def close(self) -> None:
        os.close(self._end)
        if self._thread is not None:
            self._thread.join()
        os.close(self._ended)

    def _run(self) -> None:
        is_ended = False
        while not is_ended:
            try:
                with self._connector.connect(autocommit=True) as session:
                    session.execute(f"LISTEN {CHANNEL}")
                    self._wake()  # of what came in between
                    while not (is_ended := self._wait(session)):
                        pass
            except LOST as error:
                logger.debug("No news from the database %s", self._connector.explain(error))
                is_ended = bool(select.select([self._ended], [], [], _PAUSE)[0])

    def _wait(self, session: Session) -> bool:
        """For news, or until it is time to look at the clock. Returns whether this has ended."""
        ready, _, _ = select.select([self._ended, session], [], [], _CLOCK_INTERVAL)
        if session in ready:
            if list(session.notifies(timeout=0)):
                self._wake()
        elif not ready:
            self._look_at_clock(session)
        return self._ended in ready

    def _wake(self) -> None:
        for wake in list(self._subscribers):
            wake()
