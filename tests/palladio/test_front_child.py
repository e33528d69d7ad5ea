"""How the parent looks after one front process; here a task of the same event loop stands for the process."""

import asyncio
import contextlib
import logging
import signal
import socket

import pytest

from palladio import front_child
from palladio.front_child import FrontChild
from palladio.front_process import PULSE, SERVING, FrontRequest
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.process.channel import Channel
from tests.fake_engine import FakeEngine


class Process:
    """A front that answers some questions and then hangs."""

    pid = 1

    def __init__(self, answers):
        self.left = answers
        self.asked = 0
        self.ended = asyncio.Event()
        self.end = None

    def kill(self):
        self.ended.set()
        self.end.close()  # as the kernel does

    async def wait(self):
        await self.ended.wait()
        return -signal.SIGKILL

    async def answers(self, ask):
        assert ask.kind == PULSE
        self.asked += 1
        if self.asked > self.left:
            await self.ended.wait()
        yield b""

    def hear(self, tell):
        pass


class Parent:
    def changed(self):
        pass


@pytest.mark.parametrize("answers", [0, 3])
async def test_a_front_that_hangs_is_ended(monkeypatch, caplog, answers):
    monkeypatch.setattr(front_child, "_PULSE_INTERVAL", 0.001)
    monkeypatch.setattr(front_child, "_PULSE_TIMEOUT", 0.2)
    process = Process(answers)
    request = FrontRequest(0, 0, FakeEngine(None).config, HttpConfig(), ObservabilityConfig(), number=7)
    child = FrontChild(request, process, Parent())
    ours, theirs = socket.socketpair()
    await child.connect(ours)
    process.end = await Channel.open(theirs, process)
    listening = asyncio.create_task(process.end.run())
    with caplog.at_level(logging.ERROR):
        running = asyncio.create_task(child.run())
        await asyncio.sleep(0.05)
        assert process.asked == 0, "it still starts"
        process.end.tell(SERVING)
        assert await asyncio.wait_for(running, 20) == "killed by SIGKILL"
    assert process.asked == answers + 1
    assert "Front process 7 has not answered for 0.2 s and is ended" in caplog.text
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
