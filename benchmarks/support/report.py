"""Output of a benchmark's result."""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def report(script: str, argv: Sequence[str] | None, result: Mapping[str, Any], out: Path | None) -> None:
    """Prints the result with the command that made it, and writes it to a file if one is given.

    Args:
        argv: as `main` got it; None: the command line.
    """
    command = " ".join([f"python benchmarks/{script}", *(argv or sys.argv[1:])])
    figures = {"command": command, **result}
    print(json.dumps(figures, indent=2))
    write(figures, out)


def write(figures: Mapping[str, Any], out: Path | None) -> None:
    """Write the figures so far over earlier ones: they survive if the benchmark is killed."""
    if out:
        draft = out.with_name(f"{out.name}.part")
        draft.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        draft.replace(out)


def write_rows(rows: Sequence[Mapping[str, Any]], out: Path | None) -> None:
    """Rows of a table, with the command line that made them and its date."""
    write({"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv), "rows": rows}, out)


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median of pairs of consecutive rounds, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}
