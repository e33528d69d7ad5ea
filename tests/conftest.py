"""Shared set-up: tests import the helper modules that stand beside them by name."""

import sys
from pathlib import Path

for _folder in ("", "model", "runtime", "pallas_kernels"):
    sys.path.append(str(Path(__file__).parent / _folder))
