"""FP8 checkpoints: float8 e4m3 with a scale a tensor, a row or a block (quant_method fp8, fbgemm_fp8, modelopt)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.formats.stored_format import (
    DAMAGED,
    MAX_BLOCK,
    StoredFormat,
    StoredMatrix,
    Tensor,
    Tensors,
    matches,
    module_of,
    names_in,
    scales_of,
)
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

FLOAT8 = "F8_E4M3"
_E4M3 = ("e4m3", "float8_e4m3fn")  # DeepSeek's name and MiniMax's
_NAN, _NEGATIVE_NAN = 0x7F, 0xFF  # the largest byte with a sign, and without: so one pass finds each
_SCALES = ("F32", "BF16", "F16", "F64")
SCALE_SUFFIXES = ("_scale_inv", "_scale")  # both are multiplied, whatever the name says
_OF_ACTIVATIONS = ("input_scale", "activation_scale", "input_scale_ub")  # static; activations keep their bits


@dataclasses.dataclass(frozen=True)
class Fp8(StoredFormat):
    """Weights stored as float8 e4m3 with scales.

    Attributes:
        block_size: rows and columns (as stored: out, in) that share a scale; None: one scale a tensor or a row.
        ignored: modules that are stored plainly.
    """

    block_size: tuple[int, int] | None
    ignored: tuple[str, ...] = ()

    title: ClassVar[str] = "FP8"
    flags: ClassVar[tuple[str, ...]] = ("fp8", "w8a8_fp8", "fbgemm_fp8")

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config.

        Raises:
            ConfigError: it says something unsupported.
        """
        if (name := keys.values.get("fmt")) not in (None, *_E4M3):
            raise ConfigError(
                f"quantization_config.fmt: {shown(name)} is not supported; only {' and '.join(map(repr, _E4M3))}"
            )
        scheme = keys.values.get("activation_scheme", "dynamic")
        if scheme not in ("dynamic", "static"):
            raise ConfigError(
                f"quantization_config.activation_scheme: {shown(scheme)} is not supported; only 'dynamic' and 'static'"
            )
        ignored = names_in(keys, "modules_to_not_convert") + names_in(keys, "ignored_layers")
        return cls(_block_size(keys), ignored)

    def kind(self, module: str) -> WeightKind | None:
        if matches(self.ignored, module):
            return None
        return WeightKind("float8_e4m3fn", None if self.block_size is None else self.block_size[1])

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        """Find the tensors of a matrix, as StoredFormat.find. The tensor decides: one that is not float8 is plain."""
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != FLOAT8:
            return None
        return float8_matrix(name, tensors, self.block_size, parts)


def float8_matrix(
    name: str, tensors: Tensors, block_size: tuple[int, int] | None, parts: Sequence[int] = ()
) -> StoredMatrix:
    """Find the scales of a float8 tensor [out, in] or [E, out, in].

    Args:
        parts: rows of each matrix, as in StoredFormat.find.

    Raises:
        CheckpointError: scales are missing or have another shape.
    """
    tensor = tensors[name]
    names = [name + suffix for suffix in SCALE_SUFFIXES if name + suffix in tensors]
    if not names:
        raise CheckpointError(
            f"{tensor} is float8, but its scale {tensor.name + SCALE_SUFFIXES[0]} is missing: the checkpoint is "
            "incomplete, download it again"
        )
    if len(tensor.shape) not in (2, 3):
        raise CheckpointError(f"{tensor} is float8 with {len(tensor.shape)} dimensions; only matrices can be float8")
    if 0 in tensor.shape:
        raise CheckpointError(f"{tensor} has shape {tensor.shape}, and so no numbers: {DAMAGED}")
    scale, (*lead, num_rows, num_columns) = tensors[names[0]], tensor.shape
    repeats: Sequence[int] = ()
    of_parts: list[tuple[int, ...]] = []
    if block_size is None:
        of_all = [(*lead,), (*lead, 1), (*lead, 1, 1)]
        of_rows = [(*lead, num_rows), (*lead, num_rows, 1)]
        of_parts = [(len(parts),), (len(parts), 1)] if len(parts) > 1 and sum(parts) == num_rows and not lead else []
        expected = of_all + of_rows + of_parts
        block = (1 if scale.shape in of_rows + of_parts else num_rows, num_columns)
        repeats = parts if scale.shape in of_parts else ()
    else:
        block = block_size
        expected = [(*lead, -(-num_rows // block[0]), -(-num_columns // block[1]))]
    if scale.shape not in expected:
        needed = f"{expected[0]}" + (f", or {of_parts[0]} with a scale for each part" if of_parts else "")
        raise CheckpointError(
            f"{scale} has shape {scale.shape}; {tensor.name} {tensor.shape} needs {needed}: weight_block_size in "
            f"config.json is of another checkpoint, or {DAMAGED}"
        )
    if scale.dtype not in _SCALES:
        raise CheckpointError(
            f"{scale} has dtype {scale.dtype}; scales of {tensor.name} need {' or '.join(_SCALES)}: {DAMAGED}"
        )
    module = module_of(name)
    scales = (f"{module}.{other}" for other in _OF_ACTIVATIONS)
    used = (name, *names, *(other for other in scales if other in tensors))
    kind = WeightKind("float8_e4m3fn", None if block_size is None else block_size[1])
    unpack = functools.partial(_unpack, tensor, scale, block, repeats)
    return StoredMatrix(used, (tensor, scale), tensor.shape, kind, unpack)


def _unpack(
    tensor: Tensor, scale: Tensor, block: tuple[int, int], repeats: Sequence[int], arrays: Sequence[HostArray]
) -> FileMatrix:
    """Unpack a matrix.

    Args:
        repeats: rows of each scale, where the parts of a tensor have one scale each; `block` then has one row.
    """
    values, scales = arrays
    if values.view(np.int8).max(initial=0) == _NAN or values.view(np.uint8).max(initial=0) == _NEGATIVE_NAN:
        raise CheckpointError(f"{tensor} has weights that are NaN: {DAMAGED}")
    *lead, rows, columns = values.shape
    shape = (*lead, -(-rows // block[0]), -(-columns // block[1]))
    found = scales_of(scale, scales)
    if repeats:
        found = np.repeat(found.reshape(-1), repeats)
    return FileMatrix(values, found.reshape(shape), block)


def _block_size(keys: Keys) -> tuple[int, int] | None:
    block = keys.values.get("weight_block_size")
    if block is None:
        return None
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and 0 < n <= MAX_BLOCK for n in block)):
        raise ConfigError(
            f"quantization_config.weight_block_size must be two numbers in 1 … {MAX_BLOCK}, found {shown(block)}"
        )
    return block[0], block[1]
