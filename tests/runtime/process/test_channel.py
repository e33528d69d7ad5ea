"""Questions and answers between two processes, here in one."""

import asyncio
import contextlib
import socket

import pytest

from palladio.runtime.interface.errors import EngineNotReadyError, InvalidRequestError, OverloadedError
from palladio.runtime.process.channel import Channel


class Side:
    def __init__(self):
        self.heard = []
        self.cancelled = asyncio.Event()

    def hear(self, tell):
        self.heard.append((tell.kind, tell.body))

    async def answers(self, ask):
        match ask.kind:
            case "echo":
                for byte in ask.body:
                    yield bytes([byte])
            case "refuse":
                yield b"part"
                raise InvalidRequestError("no such mode", param="mode")
            case "not ready":
                raise EngineNotReadyError("still starting")
            case "break":
                raise ZeroDivisionError
            case "wait":
                try:
                    yield b"begun"
                    await asyncio.sleep(60)
                finally:
                    self.cancelled.set()


@contextlib.asynccontextmanager
async def connected():
    sides, channels, tasks = [Side(), Side()], [], []
    for side, end in zip(sides, socket.socketpair(), strict=True):
        channels.append(await Channel.open(end, side))
    tasks = [asyncio.create_task(channel.run()) for channel in channels]
    try:
        yield channels, sides
    finally:
        for channel in channels:
            await channel.finish()
        await asyncio.gather(*tasks)


async def test_answers_come_in_parts_and_questions_run_beside_each_other():
    async with connected() as ((left, right), sides):
        slow = left.ask(0, "wait")
        assert await anext(slow) == b"begun"
        assert [part async for part in left.ask(0, "echo", b"abc")] == [b"a", b"b", b"c"]
        big = bytes(range(256)) * 4096
        assert await right.ask_once(0, "echo", big[:5000]) == big[:5000]
        left.tell("state", big)
        await left.ask_once(0, "echo", b"x")
        assert sides[1].heard == [("state", big)]
        await slow.aclose()
        async with asyncio.timeout(5):
            await sides[1].cancelled.wait()


async def test_errors_are_raised_where_they_were_asked_for():
    async with connected() as ((left, _), _):
        with pytest.raises(InvalidRequestError, match="no such mode") as refused:
            await left.ask_once(0, "refuse")
        assert refused.value.param == "mode"
        with pytest.raises(EngineNotReadyError, match="still starting"):
            await left.ask_once(0, "not ready")
        with pytest.raises(OverloadedError, match="could not"):
            await left.ask_once(0, "break")
        assert await left.ask_once(0, "echo", b"goes on") == b"goes on"


async def test_nobody_waits_for_a_side_that_is_gone():
    async with connected() as ((left, right), sides):
        asking = asyncio.create_task(left.ask_once(0, "wait"))
        while not left._asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        right.close()
        with pytest.raises(OverloadedError, match="has ended"):
            await asking
        async with asyncio.timeout(5):
            await sides[1].cancelled.wait()
        with pytest.raises(OverloadedError, match="has ended"):
            await left.ask_once(0, "echo", b"x")
