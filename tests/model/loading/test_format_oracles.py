"""Quantized matrices beside decoders that read a bit at a time: random words, and every number beside every zero."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from palladio.model.config.config import ModelConfig
from tests.model import format_oracles as oracles
from tests.model.driver import load, numbers
from tests.model.format_cases import AWQ, FLOAT, FOUR, GPTQ, ct
from tests.model.format_oracles import Array
from tests.model.quantized_checkpoints import Stored, rewrite
from tests.tiny_model import make_checkpoint, tiny_config

GROUP = 16
WORD = np.iinfo(np.int32)
Shape = tuple[int, int]
Scale = Callable[..., Array]


def words(rng: np.random.Generator, *shape: int) -> Array:
    """Any bits."""
    return rng.integers(WORD.min, WORD.max, shape, np.int32, endpoint=True)


def scales(rng: np.random.Generator, *shape: int, dtype: Any = np.float16) -> Array:
    """All of them different, in no order, some below 0."""
    whole = rng.permutation(int(np.prod(shape))).reshape(shape) + 1
    found = (whole * rng.choice([1, 1, 1, -1], shape) / 2**14).astype(dtype)
    if dtype == ml_dtypes.bfloat16:  # which has too few bits for so many whole numbers
        found = (0x3A00 + whole).astype(np.uint16).view(dtype)
    if dtype == np.float32:
        found *= np.float32(1) + rng.random(shape, np.float32) / 2**14  # all bits, so that products are rounded
    assert len(np.unique(found)) == whole.size
    return found


def ones(_: np.random.Generator, *shape: int, dtype: Any = np.float16) -> Array:
    return np.ones(shape, dtype)


def in_order(num_inputs: int, group: int = GROUP) -> Array:
    return (np.arange(num_inputs) // group).astype(np.int32)


def awq(rng: np.random.Generator, shape: Shape, scale: Scale = scales) -> Stored:
    out, size = shape
    tensors = {
        "qweight": words(rng, size, out // 8),
        "qzeros": words(rng, size // GROUP, out // 8),
        "scales": scale(rng, size // GROUP, out),
    }
    return tensors, oracles.awq(**tensors, group=GROUP)


def gptq(
    rng: np.random.Generator,
    shape: Shape,
    bits: int = 4,
    less: int = 1,
    group: int = GROUP,
    order: bool = False,
    scale: Scale = scales,
) -> Stored:
    out, size = shape
    groups = in_order(size, group)
    groups = rng.permutation(groups) if order else groups
    num_groups = int(groups.max()) + 1
    tensors = {
        "qweight": words(rng, size * bits // 32, out),
        "qzeros": words(rng, num_groups, -(-out * bits // 32)),
        "scales": scale(rng, num_groups, out),
    }
    wide = oracles.gptq(**tensors, groups=groups, bits=bits, stored_less=less)
    return {**tensors, "g_idx": groups}, wide


def packed(
    rng: np.random.Generator,
    shape: Shape,
    bits: int = 4,
    group: int | None = GROUP,
    zeros: bool = False,
    order: bool = False,
    dtype: Any = np.float32,
    scale: Scale = scales,
) -> Stored:
    out, size = shape
    groups = in_order(size, group or size)
    groups = rng.permutation(groups) if order else groups
    num_groups = int(groups.max()) + 1
    weight, factors = words(rng, out, size * bits // 32), scale(rng, out, num_groups, dtype=dtype)
    zero_point = words(rng, -(-out * bits // 32), num_groups) if zeros else None
    tensors = {"weight_packed": weight, "weight_scale": factors, "weight_shape": np.asarray(shape, np.int64)}
    tensors |= {"weight_g_idx": groups} if order else {}
    tensors |= {} if zero_point is None else {"weight_zero_point": zero_point}
    return tensors, oracles.packed(weight, factors, zero_point, groups, bits)


def int8(rng: np.random.Generator, shape: Shape, zeros: bool = True, scale: Scale = scales) -> Stored:
    weight, factors = rng.integers(-128, 128, shape, np.int8), scale(rng, shape[0], 1, dtype=np.float32)
    zero_point = rng.integers(-128, 128, (shape[0], 1), np.int8) if zeros else None
    tensors = {"weight": weight, "weight_scale": factors}
    tensors |= {} if zero_point is None else {"weight_zero_point": zero_point}
    return tensors, oracles.int8(weight, factors, zero_point)


def float8(rng: np.random.Generator, shape: Shape, block: Shape | None = None, scale: Scale = scales) -> Stored:
    bits = np.asarray([byte for byte in range(256) if byte & 127 != 127], np.uint8)
    weight = bits[rng.integers(0, len(bits), shape)]
    rows, columns = block or (1, shape[1])
    factors = scale(rng, -(-shape[0] // rows), -(-shape[1] // columns), dtype=np.float32)
    tensors = {"weight": weight.view(ml_dtypes.float8_e4m3fn), "weight_scale": factors}
    return tensors, oracles.float8(weight, factors, (rows, columns))


WITH_ZEROS = FOUR | {"symmetric": False}
CASES: dict[str, tuple[Callable[..., Stored], dict[str, Any], dict[str, Any]]] = {
    "awq": (awq, {}, AWQ),
    "gptq v1": (gptq, {}, GPTQ),
    "gptq v2": (gptq, {"less": 0}, GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq v1, 8 bits": (gptq, {"bits": 8}, GPTQ | {"bits": 8}),
    "gptq v2, 8 bits by channel": (
        gptq,
        {"bits": 8, "less": 0, "group": 1000},
        GPTQ | {"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
    ),
    "gptq v1 by channel": (gptq, {"group": 1000}, GPTQ | {"group_size": -1}),
    "gptq v1, desc_act": (gptq, {"order": True}, GPTQ | {"desc_act": True}),
    "gptq v2, desc_act": (gptq, {"order": True, "less": 0}, GPTQ | {"desc_act": True, "checkpoint_format": "gptq_v2"}),
    "packed": (packed, {}, ct("pack-quantized", **FOUR)),
    "packed, scales in bfloat16": (packed, {"dtype": ml_dtypes.bfloat16}, ct("pack-quantized", **FOUR)),
    "packed, zero points": (packed, {"zeros": True}, ct("pack-quantized", **WITH_ZEROS)),
    "packed, 8 bits by channel": (
        packed,
        {"bits": 8, "group": None},
        ct("pack-quantized", num_bits=8, strategy="channel"),
    ),
    "packed, 8 bits, zero points": (
        packed,
        {"bits": 8, "zeros": True},
        ct("pack-quantized", **WITH_ZEROS | {"num_bits": 8}),
    ),
    "packed, zero points and an order": (
        packed,
        {"zeros": True, "order": True},
        ct("pack-quantized", **WITH_ZEROS, actorder="group"),
    ),
    "int8": (int8, {"zeros": False}, ct("int-quantized", num_bits=8, strategy="channel")),
    "int8, zero points": (int8, {}, ct("int-quantized", num_bits=8, strategy="channel", symmetric=False)),
    "float8": (float8, {}, ct("float-quantized", **FLOAT, strategy="channel")),
    "float8 in blocks": (
        float8,
        {"block": (32, 16)},
        ct("float-quantized", **FLOAT, strategy="block", block_structure=[32, 16]),
    ),
}
# One of each format as a whole; below are all matrices.
LOADED = (
    *("awq", "gptq v1, desc_act", "gptq v2", "packed, zero points and an order", "int8, zero points"),
    "float8 in blocks",
)


def assert_bits(found: Array, expected: Array, name: str) -> None:
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32), err_msg=name)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in LOADED else pytest.mark.slow) for case in CASES]
)
def test_loaded_weights_are_what_the_words_mean(case: str, tmp_path: Path) -> None:
    """In their bits, and dequantized while loading."""
    make, options, quantization = CASES[case]

    def made(name: str, rng: np.random.Generator, shape: Shape) -> Stored:
        return make(rng, shape, **options)

    path = rewrite(make_checkpoint(tmp_path, "qwen2"), made, quantization)
    expected = numbers(load(path / "wide")[1])
    for found in (numbers(load(path, quantization=flag)[1]) for flag in (None, "dequantize")):
        assert found.keys() == expected.keys()
        for name, wide in expected.items():
            assert_bits(found[name], wide, name)


@dataclasses.dataclass(frozen=True)
class InFile:
    """A tensor as formats see it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


DTYPES = {"int32": "I32", "int64": "I64", "int8": "I8", "float16": "F16", "float32": "F32", "bfloat16": "BF16"}
DTYPES |= {"float8_e4m3fn": "F8_E4M3"}


@pytest.mark.parametrize("case", CASES)
def test_every_number_beside_every_zero_point(case: str) -> None:
    """Of a matrix large enough for it: of 4 bits there is every difference, of 8 bits most. The last word of an
    input's zero points is not full, where the format allows that."""
    make, options, quantization = CASES[case]
    shape = (64 if make is awq else 62, 256)
    tensors, wide = make(np.random.default_rng(5), shape, **options)
    _, differences = make(np.random.default_rng(5), shape, scale=ones, **options)
    if make is float8:
        assert len(np.unique(differences)) == 253  # zero has two bytes, and two are no numbers
    else:
        bits = quantization.get("bits") or quantization["config_groups"]["group_0"]["weights"]["num_bits"]
        has_zeros = make in (awq, gptq) or options.get("zeros", make is int8)
        possible = 2 ** (bits + has_zeros) - has_zeros
        assert len(np.unique(differences)) >= possible * (1 if bits == 4 else 0.9)
    stored_format = ModelConfig.from_hf(tiny_config("qwen2", quantization_config=quantization)).quantization
    assert stored_format is not None
    by_name = {f"layer.{end}": array for end, array in tensors.items()}
    known = {name: InFile(name, DTYPES[array.dtype.name], array.shape) for name, array in by_name.items()}
    matrix = stored_format.find("layer.weight", known)
    assert matrix is not None
    assert sorted(matrix.names) == sorted(by_name)
    found = matrix.unpack([by_name[tensor.name] for tensor in matrix.tensors])
    assert_bits(found.dense(np.float32), wide, case)
