"""Block types of GGUF files: the kind of weight that keeps the bits of a type, and how to unpack its blocks.

The layouts are those of ggml (ggml-common.h and ggml-quants.c). Numbers of a block are q · scale, less a minimum in
some types. A block is a row of bytes here, u8[…, blocks, bytes]; unpacked arrays have the matrix's rows first.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from palladio.model.base.errors import CheckpointError
from palladio.model.formats.mxfp4 import BIAS, STEPS
from palladio.model.formats.stored_format import DAMAGED, Tensor, scales_of
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

_IQ4_VALUES: HostArray = np.asarray([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The code book of IQ4_NL and IQ4_XS: the number of each 4 bits."""
_LARGEST_E8M0 = 254  # 255 is NaN


@dataclasses.dataclass(frozen=True, slots=True)
class BlockType:
    """A type of blocks.

    Attributes:
        kind: kind of the weight that keeps the numbers as they are.
        unpack: makes the matrix from the tensor (for messages) and its blocks.
    """

    kind: WeightKind
    unpack: Callable[[Tensor, HostArray], FileMatrix]


def _half(tensor: Tensor, blocks: HostArray, start: int) -> HostArray:
    """Read the float16 at a byte of each block, f32[…, blocks, 1]."""
    return scales_of(tensor, np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16))


def _rows(array: HostArray) -> HostArray:
    """Reshape so that the matrix's rows come first."""
    return array.reshape(array.shape[0], -1)


def _nibbles(packed: HostArray, run: int) -> HostArray:
    """Unpack 4-bit numbers, u8[…, n] → u8[…, 2n]: from each `run` bytes all low halves, then all high ones."""
    runs = packed.reshape(*packed.shape[:-1], -1, 1, run) >> np.array([0, 4], np.uint8)[:, None]
    return (runs & 15).reshape(*packed.shape[:-1], -1)


def _bit_planes(packed: HostArray, num_bits: int, run: int) -> HostArray:
    """Unpack bits, u8[…, n] → u8[…, n · 8 / num_bits]: from each `run` bytes the lowest bits of all, then the next
    ones, …"""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)
    runs = packed.reshape(*packed.shape[:-1], -1, 1, run) >> shifts[:, None]
    return (runs & ((1 << num_bits) - 1)).reshape(*packed.shape[:-1], -1)


def _fifth_bits(packed: HostArray) -> HostArray:
    """Unpack fifth bits, u8[…, 4] → u8[…, 32]: bit i of each 32-bit word belongs to number i, as 16 or 0."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _scaled(values: HostArray, scales: HostArray, group: int) -> FileMatrix:
    """Make the matrix q · scale."""
    return FileMatrix(_rows(values.view(np.int8)), _rows(scales), (1, group))


def _with_minima(values: HostArray, scales: HostArray, minima: HostArray, half: int) -> FileMatrix:
    """Make the matrix q · scale - minimum.

    Args:
        values: u8[…, groups, numbers], from 0 to 2 · half - 1.
        scales, minima: f32[…, groups].
        half: subtracted from the numbers, which then fit a signed type, and again as a zero point.
    """
    group = values.shape[-1]
    signed = values.view(np.int8) - np.int8(half)
    is_constant = scales == 0  # kept as 0 · the minimum, so that a zero point can express the minimum
    signed[is_constant] = -half
    scales = np.where(is_constant, minima, scales)
    zeros = np.full(scales.shape, -half, np.int8)
    return FileMatrix(_rows(signed), _rows(scales), (1, group), _rows(zeros), minima=_rows(minima))


def _q4_0(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    return _scaled(_nibbles(blocks[..., 2:], 16).view(np.int8) - np.int8(8), _half(tensor, blocks, 0), 32)


def _q4_1(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    return _with_minima(_nibbles(blocks[..., 4:], 16)[..., None, :], *_scale_and_minimum(tensor, blocks), 8)


def _q5_0(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    values = _nibbles(blocks[..., 6:], 16) | _fifth_bits(blocks[..., 2:6])
    return _scaled(values.view(np.int8) - np.int8(16), _half(tensor, blocks, 0), 32)


def _q5_1(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    values = _nibbles(blocks[..., 8:], 16) | _fifth_bits(blocks[..., 4:8])
    return _with_minima(values[..., None, :], *_scale_and_minimum(tensor, blocks), 16)


def _scale_and_minimum(tensor: Tensor, blocks: HostArray) -> tuple[HostArray, HostArray]:
    """Return scales and minima of Q4_1 and Q5_1, whose blocks add their second float16."""
    return _half(tensor, blocks, 0), -_half(tensor, blocks, 2)


def _q8_0(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    return _scaled(np.ascontiguousarray(blocks[..., 2:]), _half(tensor, blocks, 0), 32)


def _q2_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Unpack sixteen groups of 16; a scale and a minimum share a byte."""
    values = _bit_planes(blocks[..., 16:80], 2, 32).reshape(*blocks.shape[:-1], 16, 16)
    scales = _half(tensor, blocks, 80) * (blocks[..., :16] & 15).astype(np.float32)
    minima = _half(tensor, blocks, 82) * (blocks[..., :16] >> 4).astype(np.float32)
    return _with_minima(values, scales, minima, 8)


def _q3_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Unpack sixteen groups of 16; the third bit of each number, and two of the six bits of each scale, have separate
    bytes."""
    values = (_bit_planes(blocks[..., 32:96], 2, 32) | _bit_planes(blocks[..., :32], 1, 32) << 2).view(np.int8)
    packed = blocks[..., 96:108]
    six_bits = _nibbles(packed[..., :8], 8) | _bit_planes(packed[..., 8:], 2, 4) << 4
    scales = _half(tensor, blocks, 108) * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(values - np.int8(4), scales, 16)


def _six_bit_scales(tensor: Tensor, blocks: HostArray) -> tuple[HostArray, HostArray]:
    """Unpack scales and minima of the eight groups of Q4_K and Q5_K: 6 bits each, in 12 bytes from the fourth on."""
    first, second, both = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, both & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, both >> 4 | second >> 6 << 4], axis=-1)
    return (
        _half(tensor, blocks, 0) * scales.astype(np.float32),
        _half(tensor, blocks, 2) * minima.astype(np.float32),
    )


def _q4_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    values = _nibbles(blocks[..., 16:], 32).reshape(*blocks.shape[:-1], 8, 32)
    return _with_minima(values, *_six_bit_scales(tensor, blocks), 8)


def _q5_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    values = _nibbles(blocks[..., 48:], 32) | _bit_planes(blocks[..., 16:48], 1, 32) << 4
    return _with_minima(values.reshape(*blocks.shape[:-1], 8, 32), *_six_bit_scales(tensor, blocks), 16)


def _q6_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Unpack sixteen groups of 16; four bits of each number are stored apart from the other two."""
    values = (_nibbles(blocks[..., :128], 64) | _bit_planes(blocks[..., 128:192], 2, 32) << 4).view(np.int8)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return _scaled(values - np.int8(32), _half(tensor, blocks, 208) * scales, 16)


def _iq4_nl(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    return _scaled(_IQ4_VALUES[_nibbles(blocks[..., 2:], 16)], _half(tensor, blocks, 0), 32)


def _iq4_xs(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Unpack eight groups of 32; of each group's scale, four bits are in a nibble and two in a 16-bit word."""
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(*blocks.shape[:-1], 8)
    high = (blocks[..., 2:4, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(*blocks.shape[:-1], 8)
    scales = _half(tensor, blocks, 0) * ((low | high << 4).view(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(_IQ4_VALUES[_nibbles(blocks[..., 8:], 16)], scales, 32)


def _mxfp4(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Unpack 4-bit floats with a power of two, stored in another order than in safetensors of MXFP4."""
    exponents = blocks[..., 0]
    if exponents.max(initial=0) > _LARGEST_E8M0:
        raise CheckpointError(f"{tensor} has scales that are NaN (255): {DAMAGED}")
    scales = scales_of(tensor, np.ldexp(np.float32(1), exponents.astype(np.int32) - BIAS))
    return FileMatrix(_rows(STEPS[_nibbles(blocks[..., 1:], 16)]), _rows(scales), (1, 32), is_float4=True)


_INT4, _INT8 = WeightKind("int4", 32), WeightKind("int8", 32)
_INT4_MINIMA = WeightKind("int4", 32, has_zeros=True, has_real_zeros=True)
_INT8_MINIMA = WeightKind("int8", 32, has_zeros=True, has_real_zeros=True)

BLOCK_TYPES: Final[Mapping[str, BlockType]] = MappingProxyType(
    {
        "Q4_0": BlockType(_INT4, _q4_0),
        "Q4_1": BlockType(_INT4_MINIMA, _q4_1),
        "Q5_0": BlockType(_INT8, _q5_0),
        "Q5_1": BlockType(_INT8_MINIMA, _q5_1),
        "Q8_0": BlockType(_INT8, _q8_0),
        "Q2_K": BlockType(WeightKind("int4", 16, has_zeros=True, has_real_zeros=True), _q2_k),
        "Q3_K": BlockType(WeightKind("int4", 16), _q3_k),
        "Q4_K": BlockType(_INT4_MINIMA, _q4_k),
        "Q5_K": BlockType(_INT8_MINIMA, _q5_k),
        "Q6_K": BlockType(WeightKind("int8", 16), _q6_k),
        "IQ4_NL": BlockType(_INT8, _iq4_nl),
        "IQ4_XS": BlockType(_INT8, _iq4_xs),
        "MXFP4": BlockType(WeightKind("float4_e2m1fn", 32), _mxfp4),
    }
)
"""Block types by ggml's names."""
