"""How much memory this process holds."""

import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Bytes of this process in memory now; where the system does not tell (no /proc), the most that there ever were."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
