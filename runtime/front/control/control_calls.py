"""Questions to the engine that wait for an answer."""

import asyncio
import functools
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Final

from palladio.runtime.interface.errors import DeadlineError, EngineDeadError, InvalidRequestError, PalladioError
from palladio.runtime.interface.messages.calls import ControlReply, StartProfile, StopProfile, ToEngine
from palladio.runtime.interface.messages.profile_options import WRITE_SECONDS, ProfileOptions, ProfileReport

_PROFILE_TIMEOUT = 60.0  # to begin or to end a trace: the tracer of a device may take a while to come up
_WRITE_POLL = 0.05  # seconds between two questions whether a trace is written
UNANSWERED: Final = 0  # the call id of a question whose answer is ignored

Ask = Callable[[Callable[[int], ToEngine], float], Awaitable[ControlReply]]  # a message for a call id, and seconds


class ControlCalls:
    """Matches ControlReply messages to those who wait for them."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[ControlReply]] = {}
        self._ids = itertools.count(UNANSWERED + 1)

    async def ask(self, message: Callable[[int], ToEngine], timeout: float) -> ControlReply:
        """Sends `message(call_id)` and waits for the answer.

        Args:
            timeout: seconds.

        Raises:
            EngineDeadError: the engine failed, or gave no answer in time.
        """
        call_id = next(self._ids)
        reply: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = reply
        self._send(message(call_id))
        try:
            # Before Python 3.12, asyncio.wait_for drops a cancellation that comes with the answer.
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer within {timeout:g} s") from None
        finally:
            del self._waiting[call_id]

    def answer(self, reply: ControlReply) -> None:
        """Hand an answer to the call that waits for it; without such a call it is ignored."""
        waiting = self._waiting.get(reply.call_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def fail(self, error: EngineDeadError) -> None:
        """The engine failed: no answers will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)


async def order(
    ask: Ask, message: Callable[[int], ToEngine], seconds: float, refusal: type[PalladioError] = InvalidRequestError
) -> ControlReply:
    """Asks the engine for something that it may refuse.

    Args:
        refusal: what is raised then.

    Raises:
        PalladioError: see above, or as `ask` does.
    """
    reply = await ask(message, seconds)
    if reply.ok:
        return reply
    if refusal is InvalidRequestError:
        raise InvalidRequestError(reply.message, param=reply.param)
    raise refusal(reply.message)


async def begin_profile(ask: Ask, options: ProfileOptions) -> None:
    """Begin a trace; see EngineClient.start_profile."""
    await order(ask, functools.partial(StartProfile, options=options), _PROFILE_TIMEOUT)


async def end_profile(ask: Ask) -> ProfileReport:
    """End the trace and wait until it is written; see EngineClient.stop_profile."""
    deadline = time.monotonic() + WRITE_SECONDS
    while (report := (await order(ask, StopProfile, _PROFILE_TIMEOUT)).profile) is None:
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"still writing the profile after {WRITE_SECONDS:g} s; it continues in the background: try again later"
            )
        await asyncio.sleep(_WRITE_POLL)
    return report
