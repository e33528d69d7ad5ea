"""What a profile is to hold. Host Python only: the front makes it, the engine's profiler reads it."""

import dataclasses
from typing import Final

MAX_SECONDS: Final = 60.0  # of a trace without num_steps that nobody stops: it grows all the time, in memory


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Attributes:
    output_dir: the folder that it is written to, on the engine's machine.
    start_step: steps to wait for before it begins; num_steps: after which it ends by itself; None: when it is stopped,
        or after MAX_SECONDS.
    host_tracer_level: 0, nothing of the host, to 3, everything; python_tracer_level: 1 adds Python's calls;
        device_tracer_level: 1 traces the device.
    """

    output_dir: str
    start_step: int = 0
    num_steps: int | None = None
    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
