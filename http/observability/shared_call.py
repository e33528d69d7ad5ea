"""SharedCall: however many ask, the question is put once at a time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Whoever asks while an answer is awaited gets that one, or its error.

    Args:
        ask: puts the question.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises what `ask` raises."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_seen)
        return await asyncio.shield(self._asking)  # one asker that goes away does not end it for the others


def _seen(task: "asyncio.Task[T]") -> None:
    """An error is no news to the event loop when all askers have gone away."""
    if not task.cancelled():
        task.exception()
