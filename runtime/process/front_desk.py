"""FrontDesk: one engine before several front processes. Each front gets what is its own, and no more.

A request belongs to the front whose number its id bears; while it runs, another front's with the same name is refused.
When a front has ended, its owner or its heir says so, and all of its requests are aborted, also those that are still on
their way.
"""

import collections
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.front_number import PARENT, front_of_call, front_of_id, name_of_id
from palladio.runtime.interface.generation_request import GenerationRequest
from palladio.runtime.interface.messages import (
    AbortRequests,
    ControlReply,
    EngineBusy,
    FromEngine,
    StepOutputs,
    ToEngine,
)
from palladio.runtime.interface.outputs import FinishReason, TokenOutput
from palladio.runtime.interface.step_tokens import PlainTokens
from palladio.runtime.process.codec import FROM_ENGINE, address, from_engine_codec, open_socket
from palladio.runtime.process.transport import Emit, Inbox


def front_socket(front: int) -> str:
    """The name of the socket on which a front hears the engine."""
    return f"{FROM_ENGINE}-{front}"


_Parts = collections.defaultdict[int, tuple[list[TokenOutput], list[PlainTokens]]]  # by front: as in StepOutputs


class FrontDesk:
    """Used by the engine's thread; `emit` by any.

    Args:
        directory: of the sockets.
        emit_to_owner: for what all fronts get to know from the process that owns the engine.
        linger: milliseconds that what is unsent gets at the end.
    """

    def __init__(self, context: "zmq.Context[Any]", directory: Path, emit_to_owner: Emit, *, linger: int) -> None:
        self._context = context
        self._directory = directory
        self._emit_to_owner = emit_to_owner
        self._linger = linger
        self._encode = from_engine_codec().encode
        self._lock = threading.Lock()  # of the sockets
        self._sockets: dict[int, Any] = {}
        self._fronts: dict[str, int] = {}  # of the requests that have not ended
        self._named: dict[str, set[str]] = {}  # name → those of them that have it, all of one front
        self._ended: set[int] = set()  # fronts

    def take(self, message: ToEngine) -> ToEngine | None:
        """What the engine is to do of it; None: nothing."""
        match message:
            case GenerationRequest():
                return message if self._enter(message) else None
            case AbortRequests(front=front) if front != PARENT:
                return AbortRequests(self._end(front))
            case AbortRequests():
                for engine_id in message.request_ids:
                    self._forget(engine_id)
        return message

    def emit(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                for front, of_front in self._by_front(message).items():
                    self._send(front, of_front)
            case ControlReply() if front_of_call(message.call_id) != PARENT:
                self._send(front_of_call(message.call_id), message)
            case EngineBusy():
                self._emit_to_owner(message)
                for front in list(self._sockets):
                    self._send(front, message)
            case _:
                self._emit_to_owner(message)

    def close(self) -> None:
        with self._lock:
            for socket in self._sockets.values():
                socket.close()
            self._sockets.clear()

    def _enter(self, request: GenerationRequest) -> bool:
        """Whether it may run. If not, its front is told, unless that has ended."""
        engine_id = request.request_id
        front, name = front_of_id(engine_id), name_of_id(engine_id)
        if front in self._ended:
            return False
        same = self._named.get(name)
        if same is not None and self._fronts[next(iter(same))] != front:  # in its own front it is refused before
            owner = request.options.owner
            given = name.removeprefix(f"{owner}/") if owner else name
            error = InvalidRequestError(f"a request with id {given!r} is already running", param="rid")
            self._send(front, StepOutputs([TokenOutput(engine_id, [], finish=FinishReason.refusal(error))]))
            return False
        self._fronts[engine_id] = front
        self._named.setdefault(name, set()).add(engine_id)
        return True

    def _forget(self, engine_id: str) -> None:
        """It has ended, if it has ever been here."""
        if self._fronts.pop(engine_id, None) is not None:
            name = name_of_id(engine_id)
            self._named[name].remove(engine_id)
            if not self._named[name]:
                del self._named[name]

    def _by_front(self, message: StepOutputs) -> dict[int, StepOutputs]:
        """What each front gets of it, in the same order."""
        parts: _Parts = collections.defaultdict(lambda: ([], []))
        begin = 0
        for plain in message.plain:
            self._sort(message.outputs[begin : plain.place], parts)
            begin = plain.place
            own = collections.defaultdict[int, list[tuple[str, list[int]]]](list)  # by front
            for one in plain.by_request():
                if (front := self._fronts.get(one[0])) is not None:  # else it was aborted
                    own[front].append(one)
            for front, ones in own.items():
                request_ids, token_ids = map(list, zip(*ones, strict=True))
                parts[front][1].append(PlainTokens.of(request_ids, token_ids, len(parts[front][0])))
        self._sort(message.outputs[begin:], parts)
        return {front: StepOutputs(*of_front) for front, of_front in parts.items()}

    def _sort(self, outputs: Sequence[TokenOutput], parts: _Parts) -> None:
        for output in outputs:
            front = self._fronts.get(output.request_id)
            if front is None:
                continue  # aborted
            parts[front][0].append(output)
            if output.finish is not None:
                self._forget(output.request_id)

    def _send(self, front: int, message: FromEngine) -> None:
        frame = self._encode(message)
        with self._lock:
            if front in self._ended:
                return
            if front not in self._sockets:
                socket = self._sockets[front] = open_socket(self._context, zmq.PUSH, linger=self._linger)
                socket.connect(address(self._directory, front_socket(front)))
            self._sockets[front].send(frame)

    def _end(self, front: int) -> list[str]:
        """Forgets a front that has ended; returns its requests."""
        with self._lock:
            self._ended.add(front)
            socket = self._sockets.pop(front, None)
            if socket is not None:
                socket.close(linger=0)
        engine_ids = [engine_id for engine_id, own in self._fronts.items() if own == front]
        for engine_id in engine_ids:
            self._forget(engine_id)
        return engine_ids


class FrontsInbox:
    """The messages of all fronts, as the desk lets them through."""

    def __init__(self, inbox: Inbox, desk: FrontDesk) -> None:
        self._inbox = inbox
        self._desk = desk

    def get(self, seconds: float = 0.0) -> ToEngine | None:
        """See Inbox.get; what is let through may be nothing before the time is over."""
        message = self._inbox.get(seconds)
        return None if message is None else self._desk.take(message)

    def wait(self) -> ToEngine:
        """See Inbox.wait."""
        while (message := self._desk.take(self._inbox.wait())) is None:
            pass
        return message
