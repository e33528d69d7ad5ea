"""What the process that owns the engine tells its fronts of it, whenever it changes."""

from typing import Literal

import msgspec

from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.messages import EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.model_messages import MemoryTag, PauseMode

Phase = Literal["starting", "ready", "restarting", "dead"]


class ModelState(msgspec.Struct, frozen=True):
    """See ModelSwitch, whose attributes these are."""

    version: str = ""
    path: str | None = None
    paused: PauseMode | None = None
    released: list[MemoryTag] = []


class SharedState(msgspec.Struct, frozen=True):
    """
    Attributes:
        phase: of the engine.
        directory: of the running engine's sockets.
        config: with local directories; None: they are still being looked for.
        info: None: it has never been ready.
        failure: why it is dead or restarting.
        is_open: all fronts have loaded what they need: none of them says "ready" before the others can.
        leader: number of the front that does what only one may do; 0: there is none. past_leaders: those that led
            before it; all of them have ended.
    """

    phase: Phase = "starting"
    directory: str = ""
    config: EngineConfig | None = None
    info: EngineReady | None = None
    failure: EngineFailed | None = None
    progress: LoadProgress | None = None
    num_restarts: int = 0
    model: ModelState = ModelState()
    is_open: bool = False
    leader: int = 0
    past_leaders: list[int] = []


class ModelCall(msgspec.Struct, frozen=True):
    """A front's order to the running model. Attributes: method: of ModelSwitch. The others are its arguments."""

    method: Literal["pause", "go_on", "update", "update_sent", "release", "resume"]
    mode: str = ""
    path: str = ""
    content: bytes = b""
    options: dict[str, str | bool | None] = {}
    tags: list[str] | None = None
