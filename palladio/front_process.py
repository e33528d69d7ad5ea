"""The program of one front process of several: HTTP on the common port, before an engine that the parent owns.

python -P -m palladio.front_process DESCRIPTOR   # of the channel to the parent
"""

import signal

if __name__ == "__main__":  # the parent decides when to end, also while this process still imports modules
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

import asyncio
import contextlib
import mmap
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import Final, Literal

import msgspec
import uvloop

from palladio.http.fronts.peers import METRICS, Answerer
from palladio.http.listening import Stop
from palladio.http.security.connection_limits import ConnectionCounts
from palladio.http.security.tls import make_tls_context
from palladio.http.server import Port, serve_on
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.front.front_engine import MODEL_CALL, FrontEngine
from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, OverloadedError, PalladioError
from palladio.runtime.interface.front_number import PARENT
from palladio.runtime.process.channel import Ask, Channel, Tell, read_first
from palladio.runtime.process.shared_state import ModelCall, SharedState
from palladio.runtime.telemetry.logs import configure_logging
from palladio.without_torch import hide_torch_from_transformers

EVERY: Final = -1  # to whom a question goes: all other fronts
TALLY: Final = -2  # of what all fronts have counted
ABORT_ALL: Final = "abort_all"  # kind of a question
PULSE: Final = "pulse"  # kind of a question: is the front alive?
START, STATE, STOP = "start", "state", "stop"  # kinds of what the parent tells
SERVING, LOADED, READY, FAILED = "serving", "loaded", "ready", "failed"  # kinds of what a front tells
_LEADER_PATIENCE: Final = 10.0  # seconds


class FrontRequest(msgspec.Struct, frozen=True):
    """What the parent tells first, as JSON.

    Attributes:
        server: an id, unlike all other servers'.
        number: of this front, see front_number.
        listener: descriptor of the port.
        counts: descriptor of the memory that ConnectionCounts share. slot: this front's part of it.
        is_replacement: of a front that has ended.
    """

    listener: int
    counts: int
    config: EngineConfig
    http: HttpConfig
    observability: ObservabilityConfig
    server: str = ""
    number: int = 0
    slot: int = 0
    is_replacement: bool = False


class _Front:
    """This process as its parent and the other fronts know it: Peers for the app, the channel's Handler."""

    is_alone = False

    def __init__(self, request: FrontRequest) -> None:
        self.number = request.number
        self._server = request.server
        self.stop = Stop()
        self.engine = FrontEngine(request.config, self._order, self._note_loaded, request.number)
        self._channel: Channel | None = None
        self._answerers: dict[str, Answerer] = {ABORT_ALL: self._abort_all, PULSE: _beat}
        self._leader = 0
        self._past_leaders: list[int] = []
        self._is_told = asyncio.Event()  # of the engine's state
        self._elected = asyncio.Event()  # another one with each leader

    @contextlib.asynccontextmanager
    async def connected(self, end: socket.socket) -> AsyncIterator[None]:
        """While it is open, the parent is heard; if that ends, so does this process. Args: end: of the channel."""
        self._channel = await Channel.open(end, self)
        listening = asyncio.create_task(self._channel.run())
        listening.add_done_callback(_end_with_parent)
        try:
            yield
        finally:
            listening.remove_done_callback(_end_with_parent)
            await self._channel.finish()
            await listening

    def hear(self, tell: Tell) -> None:
        """See Handler.hear."""
        if tell.kind == STOP:
            self.stop.hit()
        elif tell.kind == STATE:
            self._is_told.set()
            state = msgspec.msgpack.decode(tell.body, type=SharedState)
            self.engine.follow(state)
            if state.leader != self._leader:
                if state.leader == self.number:
                    self._succeed(state.past_leaders)
                self._leader = state.leader
                elected, self._elected = self._elected, asyncio.Event()
                elected.set()

    async def first_state(self) -> None:
        """Returns when the parent has told how the engine is."""
        await self._is_told.wait()

    def answer(self, kind: str, answerer: Answerer) -> None:
        """See Peers.answer."""
        self._answerers[kind] = answerer

    def answers(self, ask: Ask) -> AsyncIterator[bytes]:
        """See Handler.answers."""
        if ask.kind not in self._answerers:
            raise OverloadedError("this front process is still starting; try again soon")
        return self._answerers[ask.kind](ask.body)

    def note(self, event: Literal["serving", "ready"]) -> None:
        """See Peers.note."""
        self._open.tell(event)

    def _note_loaded(self) -> None:
        self._open.tell(LOADED)

    def note_failure(self, error: PalladioError) -> None:
        """This front cannot start, and another one could not either."""
        self._open.tell(FAILED, msgspec.msgpack.encode((isinstance(error, ConfigError), str(error))))

    @property
    def member(self) -> str:
        """See Peers.member."""
        return self._member(self.number)

    async def lead(self) -> list[str]:
        """See Peers.lead."""
        while self._leader != self.number:
            await self._elected.wait()
        return [self._member(front) for front in self._past_leaders]

    async def leader(self) -> int:
        """See Peers.leader."""
        if not self._leader:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEADER_PATIENCE):
                    await self._elected.wait()
        if not self._leader:
            raise OverloadedError("no front process does this now; try again soon", retry_after=5.0)
        return self._leader

    def ask(self, front: int, kind: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """See Peers.ask."""
        return self._open.ask(front, kind, body)

    async def ask_others(self, kind: str, body: bytes = b"") -> list[bytes]:
        """See Peers.ask_others."""
        return msgspec.msgpack.decode(await self._open.ask_once(EVERY, kind, body), type=list[bytes])

    async def tally(self, own: bytes) -> list[bytes]:
        """See Peers.tally."""
        return msgspec.msgpack.decode(await self._open.ask_once(TALLY, METRICS, own), type=list[bytes])

    def _succeed(self, past_leaders: list[int]) -> None:
        """This front leads now. What it goes on with has the same request ids as before: the engine must have heard
        that its predecessors have ended, and this way it does so first."""
        self._past_leaders = past_leaders
        for front in past_leaders:
            self.engine.end_front(front)

    def _member(self, front: int) -> str:
        return f"{self._server}-{front}"

    async def _order(self, call: ModelCall) -> bytes:
        return await self._open.ask_once(PARENT, MODEL_CALL, msgspec.msgpack.encode(call))

    async def _abort_all(self, question: bytes) -> AsyncIterator[bytes]:
        yield msgspec.msgpack.encode(await self.engine.abort(None))

    @property
    def _open(self) -> Channel:
        assert self._channel is not None
        return self._channel


async def _serve(request: FrontRequest, channel: socket.socket) -> None:
    front = _Front(request)
    with socket.socket(fileno=request.listener) as listener:
        async with front.connected(channel):
            await _serve_until_told(front, request, listener)


async def _serve_until_told(front: _Front, request: FrontRequest, listener: socket.socket) -> None:
    try:
        counts = ConnectionCounts(memoryview(mmap.mmap(request.counts, 0)), request.slot)
        port = Port(listener, make_tls_context(request.http), counts)
        if request.is_replacement:
            await front.first_state()
            await front.engine.catch_up()  # meanwhile the others take the connections
        await serve_on(port, front.engine, request.http, request.observability, front.stop, front)
    except EngineDeadError:
        pass  # the parent knows
    except PalladioError as error:
        front.note_failure(error)


async def _beat(question: bytes) -> AsyncIterator[bytes]:
    yield b""


def _end_with_parent(listening: "asyncio.Task[None]") -> None:
    os._exit(1)  # the engine ends with the parent, too: nothing is left to serve


def main() -> int:
    """Returns the exit code: 0; what went wrong the parent is told."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        request = msgspec.json.decode(read_first(channel).body, type=FrontRequest)
    except EOFError:
        return 1  # the parent was gone before it began
    configure_logging(request.http.log_level, request.observability.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(request, channel))
    return 0


if __name__ == "__main__":
    hide_torch_from_transformers()
    sys.exit(main())
