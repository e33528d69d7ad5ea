"""Messages that stop generation, exchange the weights, or free device memory; what RL trainers ask for."""

import dataclasses
from typing import Literal, get_args

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
