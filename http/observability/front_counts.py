"""FrontCounts: what one front process has counted, on its way to another one that tells of all of them."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Self, TypeVar

import msgspec

from palladio.runtime.interface.messages import HistogramData

K = TypeVar("K")


@dataclasses.dataclass(frozen=True, slots=True)
class FrontCounts:
    """FrontMetrics as values; see there.

    Attributes:
        histograms: in the order of FrontMetrics.histograms.
    """

    histograms: list[HistogramData]
    totals: dict[str, int]
    http_requests: list[tuple[tuple[str, str], int]]
    http_responses: list[tuple[tuple[str, str, int], int]]
    warnings: dict[str, int]
    batch_lines: dict[str, int]
    database_failures: dict[str, int]
    http_active: int
    live_batches: int

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, text: bytes) -> Self:
        return msgspec.msgpack.decode(text, type=cls)


def ended_counts(texts: Sequence[bytes]) -> bytes:
    """One for those of fronts that have ended: what they were at has ended, too."""
    counts = [FrontCounts.decode(text) for text in texts]
    histograms = zip(*(one.histograms for one in counts), strict=True)
    joint = FrontCounts(
        histograms=[_joint(same) for same in histograms],
        totals=_sum(one.totals for one in counts),
        http_requests=list(_sum(dict(one.http_requests) for one in counts).items()),
        http_responses=list(_sum(dict(one.http_responses) for one in counts).items()),
        warnings=_sum(one.warnings for one in counts),
        batch_lines=_sum(one.batch_lines for one in counts),
        database_failures=_sum(one.database_failures for one in counts),
        http_active=0,
        live_batches=0,
    )
    return joint.encode()


def _joint(same: Sequence[HistogramData]) -> HistogramData:
    """Args: same: with the same bounds."""
    counts = [sum(numbers) for numbers in zip(*(one.counts for one in same), strict=True)]
    return HistogramData(same[0].bounds, counts, sum(one.total for one in same))


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    joint: collections.Counter[K] = collections.Counter()
    for part in parts:
        joint.update(part)
    return dict(joint)
