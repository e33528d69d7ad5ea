"""The messages between the front and the engine; plain dataclasses, encoded by msgspec across the process border."""

import dataclasses

from palladio.runtime.interface.messages.engine_state import EngineBusy, EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.messages.model_messages import ModelMessage
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.token_output import PlainTokens, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest


@dataclasses.dataclass(frozen=True, slots=True)
class AbortRequests:
    """Ends these requests and frees their pages, without a further output; unknown ids may have just ended: ignored."""

    request_ids: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class FlushCache:
    """Drops the prefix cache and compiled grammars; refused while requests run. Answered by ControlReply."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class GetStats:
    """Asks for EngineStats. Answered by ControlReply. Also the liveness probe: the engine loop must answer it.

    Attributes:
        check_integrity: also check pages and slots, if nothing runs; takes time, and no step runs meanwhile.
        pages: add maps of the pages; takes time, and no step runs meanwhile.
    """

    call_id: int
    check_integrity: bool = False
    pages: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Explain:
    """Asks for the state of requests by their engine-side ids. Answered by ControlReply; ended ones are left out."""

    call_id: int
    request_ids: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class StartProfile:
    """Begins a trace of the device and the host. Answered by ControlReply."""

    call_id: int
    options: ProfileOptions


@dataclasses.dataclass(frozen=True, slots=True)
class StopProfile:
    """Ends the trace. Answered by ControlReply, whose profile is None while it is still being written: ask again."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the engine loop after the current step."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutputs:
    """The output of one step.

    Attributes:
        plain: in order; see PlainTokens.place.
    """

    outputs: list[TokenOutput]
    plain: list[PlainTokens] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class ControlReply:
    """Attributes:
    message: if it is not `ok`, why; param: the field that is wrong, if it is one.
    """

    call_id: int
    ok: bool
    message: str = ""
    param: str | None = None
    stats: EngineStats | None = None
    requests: list[LiveRequest] = dataclasses.field(default_factory=list)
    profile: ProfileReport | None = None
    count: int = 0


_Question = FlushCache | GetStats | Explain | StartProfile | StopProfile | ModelMessage  # answered by ControlReply
ToEngine = GenerationRequest | AbortRequests | _Question | Shutdown
FromEngine = LoadProgress | EngineReady | EngineFailed | EngineBusy | StepOutputs | ControlReply
