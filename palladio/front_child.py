"""FrontChild: a front process as its parent knows it: the process, and the channel to it."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final, Protocol, Self

import msgspec

from palladio.front_process import FAILED, LOADED, PULSE, READY, SERVING, START, STATE, STOP, FrontRequest
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, PalladioError
from palladio.runtime.process.channel import Ask, Channel, Tell
from palladio.runtime.process.shared_state import SharedState

_PATIENCE: Final = 5.0  # seconds for the answer of each of several fronts
_PULSE_INTERVAL: Final = 5.0  # seconds between questions whether a front still answers
_PULSE_TIMEOUT: Final = 30.0  # seconds without an answer after which a front hangs: see docs/fronts.md

logger = logging.getLogger(__name__)


class FrontParent(Protocol):
    """What a child's messages are for."""

    def answers(self, asker: "FrontChild", ask: Ask) -> AsyncIterator[bytes]: ...

    def changed(self) -> None:
        """A front has got further."""


class FrontChild:
    """
    Attributes:
        number: see front_number. slot: of its connections' counts; another front may have it later.
        is_serving: it answers HTTP. is_loaded: it could take requests for the engine. is_ready: it does.
        failure: why it could not start, and another one could not either.
    """

    def __init__(self, request: FrontRequest, process: asyncio.subprocess.Process, parent: FrontParent) -> None:
        self.number, self.slot = request.number, request.slot
        self.is_serving = self.is_loaded = self.is_ready = False
        self.failure: PalladioError | None = None
        self._kept: dict[str, bytes] = {}
        self._process = process
        self._parent = parent
        self._channel: Channel | None = None

    @classmethod
    async def start(cls, request: FrontRequest, parent: FrontParent, environment: Mapping[str, str]) -> Self:
        """
        Args:
            request: what it reads first.

        Raises:
            OSError: no process can be made.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "palladio.front_process", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=dict(environment),  # uvloop takes no other mapping
                    pass_fds=(theirs.fileno(), request.listener, request.counts),
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent, which then decides
                )
            child = cls(request, process, parent)
            await child.connect(ours)
            stack.pop_all()
        child.tell(START, msgspec.json.encode(request))
        return child

    async def connect(self, end: socket.socket) -> None:
        """Args: end: of the channel."""
        self._channel = await Channel.open(end, self)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self) -> str:
        """Hears it until it ends, and ends it if it hangs; returns how it ended."""
        listening = asyncio.create_task(self._open.run())
        watching = asyncio.create_task(self._watch())
        try:
            code = await self._process.wait()
        finally:
            watching.cancel()
        await listening
        if code >= 0:
            return f"exit status {code}"
        return f"killed by {signal.Signals(-code).name}"

    async def _watch(self) -> None:
        """Ends the process when it serves and no longer answers: what others ask of it would wait for ever."""
        while True:
            await asyncio.sleep(_PULSE_INTERVAL)
            if not self.is_serving:
                continue
            try:
                async with asyncio.timeout(_PULSE_TIMEOUT):
                    await self._open.ask_once(self.number, PULSE)
            except TimeoutError:
                logger.error("Front process %d has not answered for %g s and is ended", self.number, _PULSE_TIMEOUT)
                self.kill()
                return
            except PalladioError:
                return  # the channel has closed: the process ends

    def tell(self, kind: str, body: bytes = b"") -> None:
        """See Channel.tell."""
        self._open.tell(kind, body)

    def show(self, state: SharedState) -> None:
        """The engine's state, and the fronts', are these now."""
        self.tell(STATE, msgspec.msgpack.encode(state))

    def stop(self) -> None:
        """It is to drain, or, at the second time, to end at once."""
        self.tell(STOP)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def ask(self, kind: str, body: bytes) -> AsyncIterator[bytes]:
        """See Channel.ask."""
        return self._open.ask(self.number, kind, body)

    async def ask_once(self, kind: str, body: bytes) -> bytes | None:
        """The whole answer; None: it has ended, or refuses, or takes too long. The answer is kept."""
        with contextlib.suppress(PalladioError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                answer = await self._open.ask_once(self.number, kind, body)
                self.keep(kind, answer)
                return answer
        return None

    def keep(self, kind: str, answer: bytes) -> None:
        """This is its last answer to questions of a kind."""
        self._kept[kind] = answer

    def kept(self, kind: str) -> bytes | None:
        """Its last answer; None: it has given none."""
        return self._kept.get(kind)

    def answers(self, ask: Ask) -> AsyncIterator[bytes]:
        """See Handler.answers."""
        return self._parent.answers(self, ask)

    def hear(self, tell: Tell) -> None:
        """See Handler.hear."""
        self.is_serving = self.is_serving or tell.kind == SERVING
        self.is_loaded = self.is_loaded or tell.kind == LOADED
        self.is_ready = self.is_ready or tell.kind == READY
        if tell.kind == FAILED:
            is_config, message = msgspec.msgpack.decode(tell.body, type=tuple[bool, str])
            self.failure = (ConfigError if is_config else EngineDeadError)(message)
        self._parent.changed()

    @property
    def _open(self) -> Channel:
        assert self._channel is not None
        return self._channel


class Asked(Protocol):
    """A front that can be asked: see FrontChild."""

    async def ask_once(self, kind: str, body: bytes) -> bytes | None: ...


async def ask_each(fronts: Iterable[Asked], kind: str, body: bytes = b"") -> list[bytes]:
    """The answers of those that have one."""
    answers = await asyncio.gather(*(front.ask_once(kind, body) for front in fronts))
    return [answer for answer in answers if answer is not None]
