"""How a benchmark tells its result."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def report(script: str, argv: Sequence[str] | None, result: Mapping[str, Any], out: Path | None) -> None:
    """Prints the result with the command that made it, and writes it to a file if one is given.

    Args:
        argv: as `main` got it; None: the command line.
    """
    command = " ".join([f"python benchmarks/{script}", *(argv or sys.argv[1:])])
    text = json.dumps({"command": command, **result}, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
