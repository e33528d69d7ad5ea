"""Channel: two processes of one server on the two ends of a socket pair. They ask each other, and tell each other.

A question is answered in parts, which come one by one, or with an error of our own, which is raised where it was asked.
Frames have their length before them; who reads the end of the other side knows that that process is gone.
"""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol, Self

import msgspec

from palladio.runtime.interface.errors import (
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
    OverloadedError,
    PalladioError,
)

_LENGTH: Final = struct.Struct("!I")
_GONE: Final = "the process that should have answered has ended; try again soon"
_FAILED: Final = "the process that should have answered could not; its log says why"


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error on its way. Attributes: kind: name of its class."""

    kind: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: PalladioError) -> Self:
        known = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "")
        return cls(known, str(error), error.param if isinstance(error, InvalidRequestError) else None)

    def error(self) -> PalladioError:
        if self.kind == "InvalidRequestError":
            return InvalidRequestError(self.message, param=self.param)
        return _ERRORS.get(self.kind, EngineDeadError)(self.message)


_ERRORS: Final[dict[str, type[PalladioError]]] = {  # subclasses first
    kind.__name__: kind
    for kind in (InvalidRequestError, EngineNotReadyError, OverloadedError, DeadlineError, EngineDeadError)
}


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A question. Attributes: call: its number on this side. to: number of the front that is asked, or EVERY other."""

    call: int
    to: int
    kind: str
    body: bytes


class Part(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A part of an answer."""

    call: int
    body: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of an answer."""

    call: int
    failure: Failure | None = None


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody waits for the answer any more."""

    call: int


class Tell(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Something that wants no answer."""

    kind: str
    body: bytes = b""


class Handler(Protocol):
    """What one end does with what comes from the other one."""

    def answers(self, ask: Ask) -> AsyncIterator[bytes]:
        """The parts of the answer. What it raises of our own errors is raised where it was asked."""
        ...

    def hear(self, tell: Tell) -> None: ...


class Channel:
    """One end. Used in one event loop; `run` reads until the other end is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Ask | Part | End | Cancel | Tell)
        self._calls = itertools.count()
        self._asked: dict[int, asyncio.Queue[Part | End]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._is_gone = False

    @classmethod
    async def open(cls, end: socket.socket, handler: Handler) -> Self:
        """Args: end: of a pair."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, handler)

    async def run(self) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                self._take(self._decoder.decode(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def tell(self, kind: str, body: bytes = b"") -> None:
        self._write(Tell(kind, body))

    async def ask(self, to: int, kind: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """The parts of the answer.

        Raises:
            OverloadedError: the other process has ended.
            PalladioError: what the answer raises.
        """
        if self._is_gone:
            raise OverloadedError(_GONE)
        call = next(self._calls)
        parts = self._asked[call] = asyncio.Queue[Part | End]()
        self._write(Ask(call, to, kind, body))
        has_ended = False
        try:
            while isinstance(part := await parts.get(), Part):
                yield part.body
            has_ended = True
            if part.failure is not None:
                raise part.failure.error()
        finally:
            del self._asked[call]
            if not has_ended:
                self._write(Cancel(call))

    async def ask_once(self, to: int, kind: str, body: bytes = b"") -> bytes:
        """The whole answer. Raises what `ask` raises."""
        return b"".join([part async for part in self.ask(to, kind, body)])

    def close(self) -> None:
        """Nothing is answered any more, and who waits for an answer gets an error. A second call does nothing."""
        if self._is_gone:
            return
        self._is_gone = True
        for parts in self._asked.values():
            parts.put_nowait(End(-1, Failure("OverloadedError", _GONE)))
        for task in self._answering.values():
            task.cancel()
        self._writer.close()

    async def finish(self) -> None:
        """Closes this end when what was told has gone out."""
        self.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _write(self, frame: Ask | Part | End | Cancel | Tell) -> None:
        if not self._is_gone:
            data = self._encoder.encode(frame)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    def _take(self, frame: Ask | Part | End | Cancel | Tell) -> None:
        match frame:
            case Part() | End():
                if frame.call in self._asked:
                    self._asked[frame.call].put_nowait(frame)
            case Ask():
                task = self._answering[frame.call] = asyncio.create_task(self._answer(frame))
                task.add_done_callback(lambda _: self._answering.pop(frame.call, None))
            case Cancel():
                if frame.call in self._answering:
                    self._answering[frame.call].cancel()
            case Tell():
                self._handler.hear(frame)

    async def _answer(self, ask: Ask) -> None:
        failure: Failure | None = Failure("OverloadedError", _FAILED)
        try:
            async for part in self._handler.answers(ask):
                self._write(Part(ask.call, part))
                with contextlib.suppress(ConnectionError):
                    await self._writer.drain()
            failure = None
        except PalladioError as error:
            failure = Failure.of(error)
        finally:
            self._write(End(ask.call, failure))
