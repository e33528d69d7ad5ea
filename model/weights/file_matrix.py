"""FileMatrix: a matrix as a checkpoint stores it, in any number of bits. Imports no jax."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

HostArray = np.ndarray[Any, np.dtype[Any]]

FLOAT4: HostArray = np.asarray(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, np.nan, -6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5], np.float32
)
"""4-bit floats (E2M1) by their step: 0 to 7 from zero up, and -1 to -7 down; -8 is none. A device widens such whole
numbers in fewer operations than the bits that files have."""
_CHUNK = 1 << 18  # numbers that are made at a time


@dataclasses.dataclass(frozen=True, slots=True)
class FileMatrix:
    """A matrix as a checkpoint stores it, its inputs last: [out, in], or [E, out, in] of all experts.

    Its numbers are (values - zeros) · scales - minima, in float32.

    Attributes:
        values: values as stored; 4-bit values take 8 bits each.
        scales: f32, factors on blocks, [out / rows, in / columns] or [E, …]; None: the values are the numbers.
        block: rows and columns of values that share a scale.
        zeros: i8, of the scales' shape, subtracted before scaling; None: all are 0.
        minima: f32, of the scales' shape, subtracted after scaling; None: all are 0.
        is_float4: values are steps, whose numbers are in FLOAT4.
    """

    values: HostArray
    scales: HostArray | None = None
    block: tuple[int, int] = (1, 1)
    zeros: HostArray | None = None
    is_float4: bool = False
    minima: HostArray | None = None

    def dense(self, dtype: DTypeLike) -> HostArray:
        """Return the numbers: a view as stored if there are no scales (the caller casts when it copies), else in
        `dtype`."""
        if self.scales is None:
            return self.values
        out = np.empty(self.values.shape, dtype)
        for band in self._bands():
            values = FLOAT4[self.values[band] & 15] if self.is_float4 else self.values[band].astype(np.float32)
            if self.zeros is not None:
                values -= self._of_rows(self.zeros, band)
            values *= self._of_rows(self.scales, band)
            if self.minima is not None:
                values -= self._of_rows(self.minima, band)
            out[band] = values
        return out

    def real_zeros(self) -> HostArray | None:
        """Return the zero points, minima included, to subtract before scaling; f32 if there are minima. No group has a
        minimum with a scale of 0."""
        if self.minima is None:
            return self.zeros
        assert self.scales is not None
        before = 0 if self.zeros is None else self.zeros.astype(np.float32)
        return before + self.minima / np.where(self.scales == 0, 1, self.scales)

    def of_every_row(self, array: HostArray) -> HostArray:
        """Repeat scales or zeros so that each row of values has a row."""
        return np.repeat(array, self.block[0], axis=-2)[..., : self.values.shape[-2], :]

    def _bands(self) -> Iterator[tuple[Any, ...]]:
        """Yield indices of bands of rows."""
        *lead, rows, columns = self.values.shape
        step = max(1, _CHUNK // columns)
        for before in np.ndindex(*lead):
            for start in range(0, rows, step):
                yield (*before, slice(start, min(start + step, rows)))

    def _of_rows(self, array: HostArray, band: tuple[Any, ...]) -> HostArray:
        """Return the scales or zeros of a band, f32[rows, columns]."""
        height, width = self.block
        numbers = np.arange(band[-1].start, band[-1].stop) // height
        found = array[(*band[:-1], numbers)].astype(np.float32)
        return np.repeat(found, width, axis=1)[:, : self.values.shape[-1]]
