"""The command `palladio`, until the package of that name is imported: it makes sure that it is this project's.

On the registry, palladio is another project. Beside an editable install its package is the one that Python finds, and
so is any folder of that name in PYTHONPATH; then none of ours would run, and nobody would say why.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

_OURS = "processes/early_signals.py"  # of this package and no other


def main() -> int:
    """Runs the command line; returns the exit code."""
    spec = importlib.util.find_spec("palladio")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not any((Path(folder) / _OURS).is_file() for folder in folders):
        found = folders[0] if folders else "no place" if spec is None else spec.origin
        print(
            f"error: Python finds the package palladio in {found}, and that is not this project's: if `pip list` names "
            "palladio, which is another project on the registry, run `pip uninstall palladio`, then install "
            "palladio-serve again; else take that folder out of PYTHONPATH",
            file=sys.stderr,
        )
        return 2
    status: int = importlib.import_module("palladio.__main__").main()
    return status
