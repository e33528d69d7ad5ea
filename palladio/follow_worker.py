"""The program of every host but the first: no HTTP, only the calls that host 0 makes.

python -m palladio.follow_worker < request.json
"""

import sys

import msgspec

from palladio.follow import FollowRequest
from palladio.launch_server import report_error
from palladio.runtime.errors import PalladioError
from palladio.runtime.follower import follow
from palladio.runtime.logs import configure_logging
from palladio.runtime.progress import ProgressDisplay


def main() -> int:
    """Returns the exit code: 2 for a flag to change, else 1; a host that ends as it should does not come back."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=FollowRequest)
    configure_logging(request.log_level, request.log_format)
    display = ProgressDisplay()
    try:
        follow(request.config, display.update)
    except PalladioError as error:
        display.close()
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
