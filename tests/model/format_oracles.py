"""Decoders of quantized matrices, straight from the formats' definitions: bit after bit and weight after weight.

They share no code with the product, nor with the writers in quantized_checkpoints.py: these read matrices that our code
did not pack. All give float32[out, in]: a whole number times its scale, rounded once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""AWQ: of eight outputs, the 4 bits (the lowest are 0) where the first output's number is, the second's …"""


def number_at(word: int, first_bit: int, num_bits: int) -> int:
    """The unsigned number in these bits of a word, whose lowest bit is 0."""
    number = 0
    for bit in range(num_bits):
        if int(word) & 1 << first_bit + bit:
            number += 2**bit
    return number


def filled(num_outputs: int, num_inputs: int, number: Callable[[int, int], np.float32]) -> Array:
    """Make a matrix number by number.

    Args:
        number: returns the number of an output and an input.
    """
    out = np.empty((num_outputs, num_inputs), np.float32)
    for output in range(num_outputs):
        for place in range(num_inputs):
            out[output, place] = number(output, place)
    return out


def awq(qweight: Array, qzeros: Array, scales: Array, group: int) -> Array:
    """qweight i32[in, out / 8], qzeros i32[in / group, out / 8], scales [in / group, out]: (q - z) · s."""

    def of(words: Array, row: int, output: int) -> int:
        return number_at(words[row, output // 8], 4 * AWQ_ORDER[output % 8], 4)

    def number(output: int, place: int) -> np.float32:
        row = place // group
        return np.float32(of(qweight, place, output) - of(qzeros, row, output)) * np.float32(scales[row, output])

    return filled(scales.shape[1], len(qweight), number)


def gptq(
    qweight: Array, qzeros: Array, scales: Array, groups: Sequence[int] | Array, bits: int, stored_less: int
) -> Array:
    """qweight i32[in · bits / 32, out], qzeros i32[groups, out · bits / 32], scales [groups, out]: (q - z) · s.

    Args:
        groups: of each input (g_idx).
        stored_less: 1 in the first form, whose zero points are stored less one, and so the largest number stands for
            0; 0 in the second.
    """
    per_word = 32 // bits

    def number(output: int, place: int) -> np.float32:
        row = int(groups[place])
        q = number_at(qweight[place // per_word, output], bits * (place % per_word), bits)
        z = number_at(qzeros[row, output // per_word], bits * (output % per_word), bits) + stored_less
        return np.float32(q - z % 2**bits) * np.float32(scales[row, output])

    return filled(scales.shape[1], len(groups), number)


def packed(weight: Array, scale: Array, zero_point: Array | None, groups: Sequence[int] | Array, bits: int) -> Array:
    """compressed-tensors, pack-quantized: weight i32[out, in · bits / 32], scale [out, groups], zero_point
    i32[out · bits / 32, groups], packed along the outputs. Both numbers are stored with half of the range added, which
    the difference does not see; without zero points it is subtracted.

    Args:
        groups: of each input.
    """
    per_word = 32 // bits

    def number(output: int, place: int) -> np.float32:
        row, z = int(groups[place]), 2 ** (bits - 1)
        q = number_at(weight[output, place // per_word], bits * (place % per_word), bits)
        if zero_point is not None:
            z = number_at(zero_point[output // per_word, row], bits * (output % per_word), bits)
        return np.float32(q - z) * np.float32(scale[output, row])

    return filled(len(weight), len(groups), number)


def int8(weight: Array, scale: Array, zero_point: Array | None) -> Array:
    """compressed-tensors, int-quantized: weight i8[out, in], scale [out, 1], zero_point i8[out, 1]."""

    def signed(byte: Any) -> int:
        number = number_at(int(byte) % 256, 0, 8)
        return number - 256 if number > 127 else number

    def number(output: int, place: int) -> np.float32:
        zero = 0 if zero_point is None else signed(zero_point[output, 0])
        return np.float32(signed(weight[output, place]) - zero) * np.float32(scale[output, 0])

    num_outputs, num_inputs = weight.shape
    return filled(num_outputs, num_inputs, number)


def e4m3(byte: int) -> np.float32:
    """A sign, 4 bits of an exponent with bias 7, and 3 bits behind the point; there are no infinities."""
    exponent, fraction = number_at(byte, 3, 4), number_at(byte, 0, 3)
    assert (exponent, fraction) != (15, 7), "no number"
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return np.float32(-size if number_at(byte, 7, 1) else size)


def float8(weight: Array, scale: Array, block: tuple[int, int]) -> Array:
    """compressed-tensors, float-quantized: the bytes of e4m3 numbers u8[out, in], scale [out / rows, in / columns].

    Args:
        block: rows and columns of a scale, the last of which may be cut short.
    """
    rows, columns = block
    num_outputs, num_inputs = weight.shape

    def number(output: int, place: int) -> np.float32:
        return e4m3(weight[output, place]) * np.float32(scale[output // rows, place // columns])

    return filled(num_outputs, num_inputs, number)
