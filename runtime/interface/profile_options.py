"""What a profile is to hold, and what became of one. Host Python only: the front makes the first, the engine's profiler
reads it."""

import dataclasses
from typing import Final

DEFAULT_STEPS: Final = 100  # of a profile that names no num_steps
MAX_STEPS: Final = 1000  # that num_steps may be
MAX_SECONDS: Final = 60.0  # that a trace may take
MAX_GROWTH: Final = 128 * 2**20  # bytes that the engine's process may grow meanwhile: writing them takes seconds
WRITE_SECONDS: Final = 60.0  # that writing may take before whoever waits for it is told that it goes on


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Attributes:
    output_dir: the folder that it is written to, on the engine's machine.
    start_step: steps to wait for before it begins; num_steps: after which it ends by itself; None: DEFAULT_STEPS.
    host_tracer_level: 0, nothing of the host, to 3, everything; python_tracer_level: 1 adds Python's calls;
        device_tracer_level: 1 traces the device.
    """

    output_dir: str
    start_step: int = 0
    num_steps: int | None = None
    host_tracer_level: int = 1
    python_tracer_level: int = 0
    device_tracer_level: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileReport:
    """A profile that is written.

    Attributes:
        output_dir: its folder.
        ended_by: the bound that ended it before somebody asked; "": none did.
    """

    output_dir: str
    ended_by: str = ""
