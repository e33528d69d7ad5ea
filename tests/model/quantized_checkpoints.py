"""Rewrites tiny checkpoints in the formats of quantized ones, by the formats' definitions: numbers are drawn, packed
bit by bit, and written a second time as plain float32. Nothing of the product computes here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from tests.model.safetensors_writer import NAMES, write_safetensors
from tests.tiny_model import write_json

FILE = "model.safetensors"
GROUP = 16
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble n of a word holds this column of its eight
Tensors = dict[str, Any]
Stored = tuple[Tensors, np.ndarray]  # tensors by the end of their name, and the matrix [out, in] that they are


def words(numbers: np.ndarray, bits: int, columns: tuple[int, ...] | None = None) -> np.ndarray:
    """Unsigned numbers [R, C] as i32[R, C · bits / 32]: number n of a word has its bits n · bits and up."""
    per_word = 32 // bits
    columns = tuple(range(per_word)) if columns is None else columns
    packed = np.zeros((numbers.shape[0], numbers.shape[1] // per_word), np.uint32)
    for place, column in enumerate(columns):
        packed |= numbers[:, column::per_word].astype(np.uint32) << np.uint32(bits * place)
    return packed.view(np.int32)


def spread(array: np.ndarray, group: int, size: int) -> np.ndarray:
    """Repeat the value of each group for each of its inputs, `size` in all."""
    return np.repeat(array, group, axis=1)[:, :size]


def drawn(rng: np.random.Generator, shape: tuple[int, int], group: int, bits: int, sym: bool) -> tuple[Any, ...]:
    """Unsigned numbers q and zero points z, scales s in float16, and (q - z) · s: [out, in] and [out, groups]. The last
    group may be short."""
    out, size = shape
    num_groups = -(-size // group)
    q = rng.integers(0, 1 << bits, shape)
    z = rng.integers(0, 1 << bits, (out, num_groups)) if not sym else np.full((out, num_groups), 1 << bits - 1)
    s = (rng.uniform(0.5, 2.0, z.shape) * 0.2 / (1 << bits)).astype(np.float16)
    wide = (q - spread(z, group, size)).astype(np.float32) * spread(s.astype(np.float32), group, size)
    return q, z, s, wide


def awq(rng: np.random.Generator, shape: tuple[int, int]) -> Stored:
    q, z, s, wide = drawn(rng, shape, GROUP, 4, sym=False)
    stored = {"qweight": words(q.T, 4, AWQ_COLUMNS), "qzeros": words(z.T, 4, AWQ_COLUMNS), "scales": s.T}
    return stored, wide


def gptq(
    rng: np.random.Generator,
    shape: tuple[int, int],
    bits: int = 4,
    group: int | None = GROUP,
    sym: bool = False,
    less: int = 1,
    order: bool = False,
) -> Stored:
    """Make a GPTQ matrix.

    Args:
        less: subtracted from zero points as they are stored.
        order: groups are not contiguous.
    """
    group = group or shape[1]
    q, z, s, wide = drawn(rng, shape, group, bits, sym)
    groups = np.arange(shape[1]) // group
    if order:
        rng.shuffle(groups)
        wide = (q - z[:, groups]).astype(np.float32) * s.astype(np.float32)[:, groups]
    zeros = (z.T - less) % (1 << bits)
    stored = {
        "qweight": words(q, bits).T,
        "qzeros": words(zeros, bits),
        "scales": s.T,
        "g_idx": groups.astype(np.int32),
    }
    return stored, wide


def ct_packed(
    rng: np.random.Generator,
    shape: tuple[int, int],
    bits: int = 4,
    group: int | None = GROUP,
    sym: bool = True,
    order: bool = False,
) -> Stored:
    """Make a packed compressed-tensors matrix: outputs first, zero points packed along them.

    Args:
        order: see gptq.
    """
    group = group or shape[1]
    q, z, s, wide = drawn(rng, shape, group, bits, sym)
    scales = s.astype(np.float32)
    stored = {"weight_packed": words(q, bits), "weight_scale": scales, "weight_shape": np.asarray(shape, np.int64)}
    if not sym:
        stored["weight_zero_point"] = words(z.T, bits).T
    if order:
        groups = rng.permutation(np.arange(shape[1]) // group)
        stored["weight_g_idx"] = groups.astype(np.int32)
        wide = (q - z[:, groups]).astype(np.float32) * scales[:, groups]
    return stored, wide


def ct_int8(rng: np.random.Generator, shape: tuple[int, int], bits: int = 8) -> Stored:
    """Make a compressed-tensors matrix of int8.

    Args:
        bits: bits of numbers that have a byte each.
    """
    q, z, s, wide = drawn(rng, shape, shape[1], bits, sym=False)
    less = 1 << bits - 1
    stored = {"weight": (q - less).astype(np.int8), "weight_scale": s.astype(np.float32)}
    return {**stored, "weight_zero_point": (z - less).astype(np.int8)}, wide


def float8(
    rng: np.random.Generator,
    shape: tuple[int, int],
    form: str = "channel",
    static: bool = False,
    block: tuple[int, int] = (32, 16),
) -> Stored:
    """Make a float8 matrix.

    Args:
        form: form of the scales: tensor, channel, or block.
        static: with a scale of activations.
    """
    rows, columns = {"tensor": shape, "channel": (1, shape[1]), "block": block}[form]
    scale = rng.uniform(0.5, 2.0, (-(-shape[0] // rows), -(-shape[1] // columns))).astype(np.float32)
    full = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: shape[0], : shape[1]]
    values = (rng.normal(size=shape) * 0.1).astype(ml_dtypes.float8_e4m3fn)
    stored = {"weight": values, "weight_scale": scale.reshape(()) if form == "tensor" else scale}
    if static:
        stored["input_scale"] = np.float32(3).reshape(())
    return stored, values.astype(np.float32) * full


def experts_of(make: Callable[..., Stored], rng: np.random.Generator, shape: tuple[int, ...]) -> Stored:
    """Each expert's tensors, stacked."""
    made = [make(rng, shape[1:]) for _ in range(shape[0])]
    return {name: np.stack([one[name] for one, _ in made]) for name in made[0][0]}, np.stack([wide for _, wide in made])


def mxfp4(rng: np.random.Generator, shape: tuple[int, int]) -> Stored:
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    out, size = shape
    bits = rng.integers(0, 16, shape)
    exponents = rng.integers(121, 125, (out, size // 32))
    wide = np.asarray(table, np.float32)[bits] * np.repeat(2.0 ** (exponents - 127.0), 32, axis=1).astype(np.float32)
    blocks = (bits[:, 0::2] | bits[:, 1::2] << 4).astype(np.uint8).reshape(out, size // 32, 16)
    return {"_blocks": blocks, "_scales": exponents.astype(np.uint8)}, wide


def read_all(path: Path) -> Tensors:
    """A file's tensors, float8 or not."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    dtypes = {file: name for name, file in NAMES.items()}
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, stop = (8 + size + offset for offset in entry["data_offsets"])
            dtype = np.dtype(dtypes[entry["dtype"]])
            found[name] = np.frombuffer(data[start:stop], np.uint8).view(dtype).reshape(entry["shape"])
    return found


def rewrite(
    path: Path,
    make: Callable[[str, np.random.Generator, tuple[int, ...]], Stored | None],
    quantization: dict[str, Any],
    is_matrix: Callable[[str], bool] = lambda name: name.endswith("proj.weight"),
) -> Path:
    """Rewrites a checkpoint, and writes its plain copy to `path`/wide.

    Args:
        make: of a module's name and its matrix's shape; None: it stays plain.
        quantization: quantization_config.

    Returns:
        `path`.
    """
    stored, rng = load_file(path / FILE), np.random.default_rng(7)
    wide = dict(stored)
    for name in [name for name in stored if is_matrix(name)]:
        module = name.removesuffix(".weight")
        if (made := make(module, rng, stored[name].shape)) is None:
            continue
        del stored[name]
        dot = "" if any(end.startswith("_") for end in made[0]) else "."
        stored |= {f"{module}{dot}{end}": np.ascontiguousarray(tensor) for end, tensor in made[0].items()}
        wide[name] = made[1]
    write_safetensors(path / FILE, stored)
    config = json.loads((path / "config.json").read_text())
    (path / "wide").mkdir()
    write_json(path / "wide" / "config.json", config)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in wide.items()}, path / "wide" / FILE)
    write_json(path / "config.json", config | {"quantization_config": quantization})
    return path
