"""What a soaked server's processes take over time, and whether it still grows."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support.server_process import Usage

# What may be added between the first and the last quarter: field of Usage, share of it, least amount.
GROWTH = (("rss", 0.05, 32 * 2**20), ("files", 0.0, 16), ("threads", 0.0, 4))


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server.

    Attributes:
        seconds: since the start.
        requests: that have ended by then.
        usage: of all processes together.
        processes: what each is → its resident bytes.
    """

    seconds: float
    requests: int
    usage: Usage
    processes: Mapping[str, int]

    def row(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 1),
            "requests": self.requests,
            **dataclasses.asdict(self.usage),
            "processes": dict(self.processes),
        }


def judge_growth(samples: Sequence[Sample]) -> tuple[dict[str, Any], list[str]]:
    """Compares the first quarter after the warm-up (a fifth of the time) with the last one.

    Returns:
        The figures of both quarters, each process's least memory in each third and its slopes over the last one, and
        what is too much.
    """
    if not samples:
        return {}, []
    begin = samples[-1].seconds / 5
    span = samples[-1].seconds - begin
    first = [sample.usage for sample in samples if begin <= sample.seconds <= begin + span / 4]
    last = [sample.usage for sample in samples if sample.seconds >= begin + span * 3 / 4]
    if min(len(first), len(last)) < 3:
        return {}, []
    figures: dict[str, Any] = {}
    wrong = []
    for name, share, floor in GROWTH:
        before, after = (statistics.median(getattr(usage, name) for usage in part) for part in (first, last))
        figures[name] = {"first_quarter": before, "last_quarter": after}
        if after > before + max(share * before, floor):
            wrong.append(f"{name} grew from {before:.0f} to {after:.0f}")
    third = [sample for sample in samples if sample.seconds >= samples[-1].seconds * 2 / 3]
    names = sorted({name for sample in third for name in sample.processes})
    figures["last_third"] = {name: _slopes(third, name) for name in names}
    figures["least_mib"] = {name: least_by_third(samples, name) for name in names}
    return figures, wrong


def least_by_third(samples: Sequence[Sample], process: str) -> list[float]:
    """The least that a process took in each third of the time, in MiB: what it holds when caches happen to be empty and
    no profile is written, which a leak would raise."""
    length = samples[-1].seconds / 3
    found: list[list[int]] = [[], [], []]
    for sample in samples:
        if process in sample.processes:
            found[min(2, int(sample.seconds / length))].append(sample.processes[process])
    return [round(min(part) / 2**20, 1) for part in found if part]


def _slopes(samples: Sequence[Sample], process: str) -> dict[str, float]:
    """MiB of a process: at the end, and what a minute and a thousand requests add."""
    sizes = [sample.processes.get(process, 0) / 2**20 for sample in samples]
    by_time, by_requests = (
        statistics.linear_regression(values, sizes).slope if len(set(values)) > 1 else 0.0
        for values in ([sample.seconds for sample in samples], [float(sample.requests) for sample in samples])
    )
    return {
        "mib": round(sizes[-1], 1),
        "mib_per_minute": round(by_time * 60, 3),
        "mib_per_1000_requests": round(by_requests * 1000, 3),
    }
