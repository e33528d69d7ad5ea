"""What a profile is to hold, and what became of one. Host Python only: the front makes the first, the engine's profiler
reads it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from palladio.runtime.interface.errors import InvalidRequestError

DEFAULT_STEPS: Final = 100  # of a profile that names no num_steps
MAX_STEPS: Final = 1000  # that num_steps may be
MAX_SECONDS: Final = 60.0  # that a trace may take
MAX_GROWTH: Final = 128 * 2**20  # bytes that the engine's process may grow meanwhile: writing them takes seconds
WRITE_SECONDS: Final = 60.0  # that a call waits for the writing, which then goes on

# What SGLang's profiler of torch has and XLA's has not: a value that asks for nothing passes.
_REFUSED: Final = {
    "profile_by_stage": "a trace holds prefill and decode; tell them apart by their programs",
    "profile_stages": "a trace holds prefill and decode; tell them apart by their programs",
    "record_shapes": "shapes are static: the names of the programs tell their buckets",
    "merge_profiles": "there is one engine process, and one trace",
    "profile_id": "name the folder with output_dir",
    "profile_prefix": "name the folder with output_dir",
}
_ACTIVITIES: Final = ("CPU", "GPU", "TPU")


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Attributes:
    output_dir: the folder that it is written to, on the engine's machine.
    start_step: steps to wait for before it begins; num_steps: after which it ends by itself; None: DEFAULT_STEPS.
    host_tracer_level: 0, nothing of the host, to 3, everything; python_tracer_level: 1 adds Python's calls.
    traces_device: False: not what the device does, if it is a TPU; XLA traces other devices in any case.
    """

    output_dir: str
    start_step: int = 0
    num_steps: int | None = None
    host_tracer_level: int = 1
    python_tracer_level: int = 0
    traces_device: bool = True

    @classmethod
    def of(cls, fields: Mapping[str, Any], place: Callable[[], str]) -> Self:
        """From SGLang's fields of /start_profile; a None counts as not given.

        Args:
            fields: all but output_dir.
            place: says where it is written to, when all else is right.

        Raises:
            InvalidRequestError: a field asks for what XLA's profiler has not.
        """
        for name, reason in _REFUSED.items():
            if fields.get(name):
                raise InvalidRequestError.of("{param} is not supported: {reason}", param=name, reason=reason)
        given = fields.get("activities")
        activities = {name.upper() for name in given or _ACTIVITIES}
        if not activities <= {*_ACTIVITIES}:
            raise InvalidRequestError(
                f"activities may be CPU (the host) and GPU or TPU (the device), got {given}", param="activities"
            )
        host, python = fields.get("host_tracer_level"), fields.get("python_tracer_level")
        host = 1 if host is None else host
        return cls(
            place(),
            start_step=fields.get("start_step") or 0,
            num_steps=fields.get("num_steps"),
            host_tracer_level=host if "CPU" in activities else 0,
            python_tracer_level=int(bool(fields.get("with_stack"))) if python is None else python,
            traces_device=activities != {"CPU"},
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileReport:
    """A profile that is written.

    Attributes:
        output_dir: its folder.
        ended_by: the bound that ended it before somebody asked; "": none did.
    """

    output_dir: str
    ended_by: str = ""
