"""Whole numbers of 4 and 8 bits that are packed into 32-bit numbers, the lowest bits first."""

import numpy as np

from palladio.model.weights.file_matrix import HostArray

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)


def unpack_columns(packed: HostArray, bits: int, order: tuple[int, ...] = IN_ORDER) -> HostArray:
    """Unpack columns, i32[…, C] → i8[…, C · 32 / bits], less half of the range: 0 … 15 become -8 … 7.

    Args:
        bits: 4 or 8.
        order: for 4 bits, the columns, among each eight, that the lowest, the next … bits hold.
    """
    octets = np.ascontiguousarray(packed).view(np.uint8).reshape(*packed.shape, 4)
    if bits == 8:
        return (octets ^ 128).view(np.int8).reshape(*packed.shape[:-1], -1)
    out = np.empty((*packed.shape, 8), np.int8)
    for number in range(4):
        np.subtract((octets[..., number] & 15).view(np.int8), 8, out=out[..., order[2 * number]])
        np.subtract((octets[..., number] >> 4).view(np.int8), 8, out=out[..., order[2 * number + 1]])
    return out.reshape(*packed.shape[:-1], -1)


def unpack_rows(packed: HostArray, bits: int) -> HostArray:
    """Unpack rows, i32[R, C] → i8[R · 32 / bits, C], as `unpack_columns`."""
    columns = unpack_columns(packed[..., None], bits)  # [R, C, 32 / bits]
    return columns.transpose(0, 2, 1).reshape(-1, packed.shape[1])
