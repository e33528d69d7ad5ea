"""Questions to the engine: whoever asks may go away at any moment."""

import asyncio

import pytest

from palladio.runtime.front.control.control_calls import UNANSWERED, ControlCalls
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages.calls import ControlReply, GetStats, ToEngine


async def test_who_is_cancelled_as_the_answer_comes_stays_cancelled() -> None:
    """Else a task that asks for ever could not be ended: the dashboard's sampler, and with it the server."""
    sent: list[ToEngine] = []
    calls = ControlCalls(sent.append)
    asking = asyncio.create_task(calls.ask(GetStats, 5.0))
    await asyncio.sleep(0)
    calls.answer(ControlReply(UNANSWERED + 1, ok=True))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sent == [GetStats(UNANSWERED + 1)]


async def test_an_engine_that_does_not_answer_in_time_is_dead() -> None:
    calls = ControlCalls(lambda message: None)
    with pytest.raises(EngineDeadError, match=r"did not answer within 0\.01 s"):
        await calls.ask(GetStats, 0.01)
