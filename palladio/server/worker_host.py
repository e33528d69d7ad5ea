"""`palladio serve` on every host but the first: this process becomes a worker host, which does what host 0 says."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from palladio.processes.child import python_path
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.telemetry.logs import LogFormat


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerHostRequest:
    """What the new program reads from its standard input, as JSON."""

    config: EngineConfig
    log_level: str
    log_format: LogFormat


def become_worker_host(request: WorkerHostRequest, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process: the process that started it has its pid, and means the engine."""
    reading, writing = os.pipe()
    os.write(writing, msgspec.json.encode(request))  # a few KiB, which a pipe holds
    os.close(writing)
    os.dup2(reading, sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-P", "-m", "palladio.server.worker_host_process"]
    os.execve(sys.executable, command, {**environment, "PYTHONPATH": python_path()})
