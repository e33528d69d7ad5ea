"""Questions to the engine that wait for an answer."""

import asyncio
import itertools
from collections.abc import Callable

from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages import ControlReply, ToEngine


class ControlCalls:
    """Matches ControlReply messages to those who wait for them."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[ControlReply]] = {}
        self._ids = itertools.count()

    async def ask(self, message: Callable[[int], ToEngine], timeout: float) -> ControlReply:
        """Sends `message(call_id)` and waits for the answer.

        Args:
            timeout: seconds.

        Raises:
            EngineDeadError: the engine failed, or gave no answer in time.
        """
        call_id = next(self._ids)
        reply = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        self._send(message(call_id))
        try:
            return await asyncio.wait_for(reply, timeout)
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer within {timeout:g} s") from None
        finally:
            del self._waiting[call_id]

    def answer(self, reply: ControlReply) -> None:
        """An answer came; one that nobody waits for any more is ignored."""
        waiting = self._waiting.get(reply.call_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def fail(self, error: EngineDeadError) -> None:
        """The engine failed: no answers will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
