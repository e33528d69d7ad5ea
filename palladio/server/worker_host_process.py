"""The program of every host but the first: no HTTP, only the calls that host 0 makes.

python -m palladio.server.worker_host_process < request.json
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import contextlib
import os
import sys

import msgspec

from palladio.runtime.core.start.host_worker import run_host_worker
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.telemetry.logs import configure_logging
from palladio.server.launch import run_worker
from palladio.server.worker_host import WorkerHostRequest


def main() -> int:
    """Returns the exit code, see run_worker; a host that ends as it should does not come back."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerHostRequest)
    configure_logging(request.log_level, request.log_format)
    with contextlib.closing(ProgressDisplay()) as display:
        return run_worker(lambda: run_host_worker(request.config, display.update))


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # jax would wait for the other hosts, which this one has left
