"""Explains errors that come of a file in the working folder with the name of one of Python's modules: with `python -m`,
Python imports that file instead, and its error names neither. Imports nothing that takes time."""

import os
import sys
from types import TracebackType


def explain_hidden_modules() -> None:
    """From now on, this process prints one line for an unhandled exception, if it has imported such a file."""
    shown = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hiding = _hiding()
        if hiding is None or not issubclass(kind, Exception):
            shown(kind, error, trace)
        else:
            name, file = hiding
            print(
                f"error: {file} hides Python's module {name}, which Palladio needs: rename it, or start from another "
                f"folder ({kind.__name__}: {error})",
                file=sys.stderr,
            )

    sys.excepthook = explain


def _hiding() -> tuple[str, str] | None:
    """The name of a standard module that was imported from the working folder, and the file."""
    folder = os.getcwd()
    for name in sys.stdlib_module_names & sys.modules.keys():
        file = vars(sys.modules[name]).get("__file__")
        if file is None:
            continue
        place = os.path.dirname(os.path.abspath(file))
        if os.path.basename(file) == "__init__.py":
            place, file = os.path.dirname(place), os.path.dirname(file)
        if place == folder:
            return name, file
    return None
