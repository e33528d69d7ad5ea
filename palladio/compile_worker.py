"""The process that `palladio compile` starts: jax is imported here and not in the command line's own process.

python -m palladio.compile_worker < config.json
"""

import sys

import msgspec

from palladio.launch_server import report_error
from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import PalladioError
from palladio.runtime.logs import configure_logging
from palladio.runtime.precompile import compile_ahead


def main() -> int:
    """Returns the exit code: 0, or 2 for a wrong flag."""
    configure_logging("info")
    try:
        compile_ahead(msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig))
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
