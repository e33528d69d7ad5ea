"""The final schedules that libtpu writes of what it compiles: bundles of instructions, and the slots they use.

libtpu reads its flags when it is loaded, so `dump_to` comes before anything is compiled in the process.
"""

import dataclasses
import os
import re
from pathlib import Path

UNITS = ("MXU", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "FILL", "VSTORE", "SPILL", "SALU")
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:(LH|LB|LE|PB|PF|CT)\s*)?:\s*((?:>\s*)*)\{")
_USAGE = "final_hlo-static-per-bundle-utilization.txt"
_NAME = re.compile(r"\d+-(.+?)(?:\.\d+)?-\d+-final_hlo-static")


def dump_flags(folder: Path) -> str:
    """For LIBTPU_INIT_ARGS. The last passes alone: all of them are 50 times as much, and take longer than compiling."""
    passes = "final_(bundles|hlo-static)"
    return f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={passes}"


def dump_to(folder: Path) -> None:
    """Lets libtpu, which must not be loaded yet, write schedules into `folder`."""
    os.environ["LIBTPU_INIT_ARGS"] = dump_flags(folder)


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Bundles in a row without a label between them, so run one after the other.

    Attributes:
        depth: loops around it.
        bundles: number of bundles.
        units: slots used, by unit.
    """

    depth: int
    bundles: int
    units: dict[str, int]


def read_schedule(folder: Path, kernel: str) -> list[Segment]:
    """Read the schedule of the last compiled kernel whose name holds `kernel`."""
    file = max(f for f in folder.glob(f"*{kernel}*final_bundles.txt") if "schedule-analysis" not in f.name)
    rows = _usage(max(folder.glob(f"*{kernel}*{_USAGE}")))
    segments: list[Segment] = []
    labels = [match.groups() for line in file.open() if (match := _BUNDLE.match(line))]
    start = 0
    for i, (label, _) in enumerate([*labels[1:], ("end", "")], start=1):
        if label is not None or (i < len(labels) and labels[i][1].count(">") != labels[i - 1][1].count(">")):
            used = [sum(column) for column in zip(*rows[start:i], strict=True)] or [0] * len(UNITS)
            units = dict(zip(UNITS, used, strict=True))
            segments.append(Segment(labels[start][1].count(">"), i - start, units))
            start = i
    return segments


def spill_slots(folder: Path, *kernels: str) -> dict[str, int]:
    """Count the stores that the register allocator added to each kernel whose name begins with one of `kernels`, once
    however often they run."""
    column = UNITS.index("SPILL")
    spills: dict[str, int] = {}
    for file in sorted(folder.glob(f"*{_USAGE}")):
        match = _NAME.match(file.name)
        if match and match[1].startswith(kernels):
            spills[match[1]] = spills.get(match[1], 0) + sum(row[column] for row in _usage(file))
    return spills


def _usage(file: Path) -> list[list[int]]:
    """Slots by unit, of each bundle."""
    rows = [list(map(int, parts)) for line in file.open() if (parts := line.split()) and all(map(str.isdigit, parts))]
    return rows[1:]  # the first line holds the capacities
