"""Counts of values by size, for metrics."""

import bisect
from collections.abc import Sequence

from palladio.runtime.interface.messages.engine_stats import HistogramData


class Histogram:
    """Counts values by bucket; see HistogramData.

    Args:
        bounds: upper bounds of the buckets, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value.

        Args:
            count: how many values of this size there were.
        """
        self._counts[bisect.bisect_left(self._bounds, value)] += count
        self._total += value * count

    def data(self) -> HistogramData:
        return HistogramData(list(self._bounds), list(self._counts), self._total)
