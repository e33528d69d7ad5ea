"""What a device did in a trace of jax's profiler: how busy it was, its gaps between steps, its costliest kernels.

    python benchmarks/gpu/device_trace.py FOLDER --steps 64       # of /start_profile, or of jax.profiler.trace

XLA launches the kernels of a CUDA graph one by one while it traces, unless
XLA_FLAGS=--xla_enable_command_buffers_during_profiling=true; inside a graph they carry neither their program's name nor
their operation's, so steps are told apart by a kernel
that each of them runs once. On a CPU the operations of its thunks stand for kernels.
"""

import argparse
import collections
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.profiler import ProfileData

COPIES = ("Memcpy", "Memset")
NUM_NAMED = 24  # kernels that the summary names


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One that ran; start, end: in ns."""

    name: str
    start: float
    end: float


def read_kernels(folder: Path) -> list[Kernel]:
    """Read the kernels of the newest trace under `folder`, of its first device, by their start.

    Raises:
        ValueError: there is no trace, or no kernel in it.
    """
    files = sorted(folder.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ValueError(f"{folder}: no *.xplane.pb there")
    planes = {plane.name: plane for plane in ProfileData.from_file(str(files[-1])).planes}
    device = min((name for name in planes if re.fullmatch(r"/device:[GT]PU:\d+", name)), default="/host:CPU")
    if device not in planes:
        raise ValueError(f"{files[-1]}: no device, only {', '.join(planes)}")
    kernels = [kernel for line in planes[device].lines for kernel in _kernels_of(device, line)]
    if not kernels:
        raise ValueError(f"{files[-1]}: nothing ran on {device}")
    return sorted(kernels, key=lambda kernel: kernel.start)


def _kernels_of(device: str, line: Any) -> Iterator[Kernel]:
    """Yield the kernels of a line. A GPU has a line for each of its streams, a TPU one for operations; other lines
    repeat them. Copies to and from the host are no kernels: they happen in the gaps to be measured."""
    is_cpu = not device.startswith("/device:")
    if is_cpu or line.name.startswith("Stream") or line.name == "XLA Ops":
        for event in line.events:
            if any(name == "hlo_op" for name, _ in event.stats) if is_cpu else not event.name.startswith(COPIES):
                yield Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)


def idle_intervals(kernels: Sequence[Kernel]) -> list[tuple[float, float]]:
    """Return the intervals without a kernel: start and length, in ns."""
    found, busy_until = [], kernels[0].end
    for kernel in kernels[1:]:
        if kernel.start > busy_until:
            found.append((busy_until, kernel.start - busy_until))
        busy_until = max(busy_until, kernel.end)
    return found


def step_starts(kernels: Sequence[Kernel], num_steps: int) -> list[float]:
    """Return when, in ns, each step ran its marker kernel: of the kernels that ran about once a step, the one that is
    spread most evenly; others have a name that several parts of few steps share."""
    starts: dict[str, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        starts[kernel.name].append(kernel.start)
    nearest = min(abs(len(times) - num_steps) for times in starts.values())
    off = max(nearest, num_steps // 10, 1)
    marks = [times for times in starts.values() if abs(len(times) - num_steps) <= off]
    return max(marks, key=lambda times: float(np.median(np.diff(times))) if len(times) > 1 else 0.0)


def summarize(kernels: Sequence[Kernel], num_steps: int) -> dict[str, Any]:
    """Return the figures of a trace.

    Args:
        num_steps: approximate number of traced steps.

    Returns:
        "steps": steps that were told apart; "kernels a step" and "step µs", medians; "busy share" of the time from the
        first kernel to the last; "gap µs p50" and "p99" of the longest gap of each step, which is that between steps
        unless there is none; "kernels": name, times a step, and µs a step of the costliest.

    Raises:
        ValueError: there is no second step.
    """
    marks, idle = step_starts(kernels, num_steps), idle_intervals(kernels)
    if len(marks) < 2:
        raise ValueError(f"{len(kernels)} kernels ran, but none of them once a step")
    longest = np.zeros(len(marks) - 1)
    for begin, length in idle:
        step = int(np.searchsorted(marks, begin, side="right")) - 1
        if 0 <= step < len(longest):
            longest[step] = max(longest[step], length)
    span = max(kernel.end for kernel in kernels) - kernels[0].start
    figures: dict[str, Any] = {
        "steps": len(marks),
        "kernels a step": float(np.median(np.diff(np.searchsorted([kernel.start for kernel in kernels], marks)))),
        "step µs": float(np.median(np.diff(marks))) / 1e3,
        "busy share": 1.0 - sum(length for _, length in idle) / span,
        **{f"gap µs p{share}": float(np.percentile(longest, share)) / 1e3 for share in (50, 99)},
    }
    totals: dict[str, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        totals[kernel.name].append(kernel.end - kernel.start)
    costliest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:NUM_NAMED]
    figures["kernels"] = [
        {"name": name, "times a step": len(times) / len(marks), "µs a step": sum(times) / len(marks) / 1e3}
        for name, times in costliest
    ]
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True, help="that were traced, about")
    args = parser.parse_args(argv)
    try:
        found = summarize(read_kernels(args.folder), args.steps)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
