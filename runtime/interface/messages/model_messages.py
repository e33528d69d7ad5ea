"""Messages that stop generation, exchange the weights, or free device memory, as RL trainers ask for."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal, Self, get_args

from palladio.runtime.interface.errors import InvalidRequestError

PauseMode = Literal["abort", "retract", "in_place"]
MemoryTag = Literal["weights", "kv_cache"]
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)
MEMORY_TAGS: tuple[MemoryTag, ...] = get_args(MemoryTag)


@dataclasses.dataclass(frozen=True, slots=True)
class SetPause:
    """Stops generation, or lets it go on. Answered by ControlReply.

    Attributes:
        mode: "retract": running requests give up their pages and wait; "in_place": they keep them; "abort": as
            in_place (the front has aborted all requests). None: generation goes on.
    """

    call_id: int
    mode: PauseMode | None


@dataclasses.dataclass(frozen=True, slots=True)
class UpdateWeights:
    """Exchanges the weights for those in a directory of safetensors. Running requests keep their tokens; their keys and
    values are computed again, and the prefix cache is emptied. Answered by ControlReply, whose `count` is the number of
    requests that had begun; if it is not `ok`, nothing has changed."""

    call_id: int
    path: str


@dataclasses.dataclass(frozen=True, slots=True)
class SetReleased:
    """Says which device memory the engine is to do without; it frees or restores what differs from that. Answered by
    ControlReply."""

    call_id: int
    tags: list[MemoryTag]


ModelMessage = SetPause | UpdateWeights | SetReleased

LOAD_FORMATS: Final = (None, "auto", "safetensors")
IGNORED: Final[Mapping[str, str]] = {
    "torch_empty_cache": "there is no torch here",
    "recapture_cuda_graph": "programs take the weights as arguments, so nothing is captured again",
    "disable_draft_model": "there is no draft model",
}
_REFUSED: Final[Mapping[str, tuple[object, str]]] = {  # the neutral value, and why no other one is taken
    "is_async": (False, "the update has ended when the answer comes"),
    "token_step": (0, "give a weight_version, which answers show"),
    "flush_cache": (True, "keys and values of the old weights are never used with the new ones"),
    "manifest": (None, "tensors are checked against the served model"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How weights are exchanged.

    Attributes:
        weight_version: the new weights' name; None: one is made up.
        abort_all_requests: running and waiting requests end first.
        keep_pause: generation stays paused, or is paused, until /continue_generation.
    """

    weight_version: str | None = None
    abort_all_requests: bool = False
    keep_pause: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """
        Args:
            fields: of the request, all but the weights; None counts as not given.

        Raises:
            InvalidRequestError: one asks for what is not there; or is unknown.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        load_format = given.pop("load_format", None)
        if load_format not in LOAD_FORMATS:
            message = "{param} {found!r} is not supported: weights are read from safetensors alone; leave it out"
            raise InvalidRequestError.of(message, param="load_format", found=load_format)
        for name, (neutral, why) in _REFUSED.items():
            value = given.pop(name, neutral)
            if type(value) is not type(neutral) or value != neutral:
                message = "{param} {value!r} is not supported: {why}; leave it out"
                raise InvalidRequestError.of(message, param=name, value=value, why=why)
        for name in IGNORED:
            given.pop(name, None)
        unknown = given.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            name = min(unknown)
            raise InvalidRequestError.of("unknown field {name!r} of a weight update", param=name, name=name)
        return cls(**given)
