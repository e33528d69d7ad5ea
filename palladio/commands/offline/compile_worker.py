"""The process that `palladio compile` starts: jax is imported here and not in the command line's own process.

python -m palladio.commands.offline.compile_worker < config.json
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import sys

import msgspec

from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.telemetry.logs import configure_logging
from palladio.server.launch import run_worker


def main() -> int:
    """Returns the exit code, see run_worker."""
    configure_logging("info")
    return run_worker(lambda: compile_ahead(msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)))


if __name__ == "__main__":
    sys.exit(main())
