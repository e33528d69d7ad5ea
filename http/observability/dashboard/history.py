"""History: the last hour of a server in a ring buffer of fixed size."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]

SECONDS = 3600  # that it goes back
FINE_ROWS = 300  # as they came, about one a second
MERGED = 10  # of which one older row is made
MAX_BYTES = 2 << 20  # of all rows; with very many columns, the old ones go back less far


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a row holds: its time, then gauges, then counters.

    A value that is not known is NaN. Counters only grow, but for those of an engine that was started again.

    Attributes:
        gauges, counters: names, without repetitions.
        histograms: by name: their bounds. Each has a counter for each bucket, behind the others.
    """

    gauges: tuple[str, ...]
    counters: tuple[str, ...]
    histograms: dict[str, tuple[float, ...]]

    @property
    def first_counter(self) -> int:
        return 1 + len(self.gauges)

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.first_counter + len(self.counters) + sum(len(bounds) + 1 for bounds in self.histograms.values())

    def place(self, name: str) -> int:
        """Return the index of a gauge or a counter in a row."""
        return 1 + (*self.gauges, *self.counters).index(name)

    def buckets(self, name: str) -> slice:
        """Return the buckets of a histogram in a row.

        Raises:
            KeyError: there is no such histogram.
        """
        begin = self.first_counter + len(self.counters)
        for known, bounds in self.histograms.items():
            end = begin + len(bounds) + 1
            if known == name:
                return slice(begin, end)
            begin = end
        raise KeyError(name)


class History:
    """The newest rows as they came, and of older ones one for each MERGED: its counters are those of the last one, so
    that differences stay exact, and its gauges are means.

    Args:
        columns: of the rows.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        num_old = SECONDS // MERGED
        bytes_each = 8 * columns.width
        self._old = _Ring(max(1, min(num_old, MAX_BYTES // bytes_each - FINE_ROWS)), columns.width)
        self._new = _Ring(min(FINE_ROWS, max(2, MAX_BYTES // bytes_each // 2)), columns.width)
        self._pending: list[Row] = []

    @property
    def num_bytes(self) -> int:
        """Memory of all rows, used or not, in bytes."""
        return self._old.num_bytes + self._new.num_bytes

    def append(self, row: Row) -> None:
        """Add a row.

        Args:
            row: its time is later than the last row's.
        """
        self._new.append(row)
        self._pending.append(row)
        if len(self._pending) == MERGED:
            self._old.append(self._merge(self._pending))
            self._pending.clear()

    def rows(self) -> Row:
        """Return all rows by time, [rows, columns]: merged rows, then single rows where there are any."""
        new, old = self._new.rows(), self._old.rows()
        return new if not len(new) else np.concatenate([old[old[:, 0] < new[0, 0]], new])

    def _merge(self, rows: Sequence[Row]) -> Row:
        merged, gauges = rows[-1].copy(), slice(1, self.columns.first_counter)
        values = np.stack(rows)[:, gauges]
        known = np.isfinite(values)
        counts = known.sum(axis=0)
        sums = np.where(known, values, 0.0).sum(axis=0)
        merged[gauges] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return merged


class _Ring:
    def __init__(self, size: int, width: int) -> None:
        self._values = np.zeros((size, width))
        self._count = 0  # that ever came

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes

    def append(self, row: Row) -> None:
        self._values[self._count % len(self._values)] = row
        self._count += 1

    def rows(self) -> Row:
        """A copy, the oldest first."""
        size = len(self._values)
        if self._count <= size:
            return self._values[: self._count].copy()
        return np.roll(self._values, -(self._count % size), axis=0)
