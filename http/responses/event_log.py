"""EventLog: the events of an answer that is made in the background, for clients that follow it."""

import asyncio
from collections.abc import AsyncIterator

END = b"\n\n"


class EventLog:
    """Grows until it is closed. Each event's number is its place."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def content(self) -> bytes:
        return b"".join(self._events)

    def add(self, events: bytes) -> None:
        """Add events.

        Args:
            events: any number of whole events.
        """
        if events:
            self._events += split_events(events)
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def follow(self, first: int) -> AsyncIterator[bytes]:
        """Yield the events from number `first` on, as they come."""
        while True:
            changed = self._changed
            if first < len(self._events):
                fresh = self._events[first:]
                first = len(self._events)
                yield b"".join(fresh)
            elif self._closed:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def split_events(events: bytes) -> list[bytes]:
    return [event + END for event in events.split(END)[:-1]]
