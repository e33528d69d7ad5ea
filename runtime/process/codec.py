"""What both ends of the process border share: the encoding of messages, the sockets, and the child's first line.

Messages travel as msgpack over two ZeroMQ sockets in a private directory; one frame is one message: a tag byte, then
the fields.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import zmq

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
    ConfigureProcess,
    ControlReply,
    Explain,
    FlushCache,
    FromEngine,
    GetStats,
    Shutdown,
    StartProfile,
    StepOutputs,
    StopProfile,
    ToEngine,
)
from palladio.runtime.interface.messages.engine_state import EngineBusy, EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.messages.model_messages import SetPause, SetReleased, UpdateWeights
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.telemetry.logs import LogFormat

TO_ENGINE, FROM_ENGINE = "to-engine", "from-engine"  # the sockets' names

M = TypeVar("M")


class Codec(Generic[M]):
    """Bytes of a closed set of message types."""

    def __init__(self, types: Sequence[type]) -> None:
        self._tags = {kind: bytes((tag,)) for tag, kind in enumerate(types)}
        self._decoders: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(kind) for kind in types]
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        return self._tags[type(message)] + self._encoder.encode(message)

    def decode(self, frame: bytes) -> M:
        return cast("M", self._decoders[frame[0]].decode(memoryview(frame)[1:]))


def to_engine_codec() -> Codec[ToEngine]:
    questions = (FlushCache, GetStats, Explain, StartProfile, StopProfile, SetPause, UpdateWeights, SetReleased)
    return Codec([GenerationRequest, AbortRequests, *questions, ConfigureProcess, Shutdown])


def from_engine_codec() -> Codec[FromEngine]:
    return Codec([StepOutputs, ControlReply, LoadProgress, EngineReady, EngineFailed, EngineBusy])


class Bootstrap(msgspec.Struct, frozen=True):
    """The first line on the child's stdin."""

    socket_dir: str
    core_factory: str
    log_level: int
    config: EngineConfig
    log_format: LogFormat = "text"


def open_socket(context: "zmq.Context[Any]", kind: int, *, linger: int) -> Any:
    """A socket that neither drops nor blocks.

    Args:
        linger: milliseconds that what is unsent gets when it is closed.
    """
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, linger)
    return socket


def address(directory: Path, name: str) -> str:
    return f"ipc://{directory / name}"
