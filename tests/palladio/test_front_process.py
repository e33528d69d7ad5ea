"""What a front process does when the parent says that it leads now."""

import asyncio

import msgspec
import pytest

from palladio.front_process import STATE, FrontRequest, _Front
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.messages import AbortRequests
from palladio.runtime.process.channel import Tell
from palladio.runtime.process.shared_state import SharedState
from tests.fake_engine import FakeEngine


async def test_a_front_that_takes_over_ends_those_before_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the engine, on the way of its own requests; and it knows what to sign off in a shared database."""
    config = FakeEngine(None).config
    request = FrontRequest(0, 0, config, HttpConfig(), ObservabilityConfig(), server="host", number=7)
    front, sent = _Front(request), []
    monkeypatch.setattr(front.engine._transport, "send", sent.append)

    def hear(leader: int, *past_leaders: int) -> None:
        state = SharedState(leader=leader, past_leaders=list(past_leaders))
        front.hear(Tell(STATE, msgspec.msgpack.encode(state)))

    leading = asyncio.create_task(front.lead())
    hear(2)
    hear(3, 2)
    await asyncio.sleep(0)
    assert not leading.done()
    assert sent == []
    hear(7, 2, 3)
    assert sent == [AbortRequests([], 2), AbortRequests([], 3)]
    hear(7, 2, 3)
    assert await leading == ["host-2", "host-3"]
    assert len(sent) == 2
    assert front.member == "host-7"
