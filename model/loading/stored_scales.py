"""Quantized tensors of a checkpoint: which scales belong to them, and whether these fit."""

from collections.abc import Mapping

import numpy as np

from palladio.model.errors import CheckpointError
from palladio.model.loading.checkpoint import Checkpoint
from palladio.model.loading.parameters import Slot
from palladio.model.loading.safetensors_file import StoredTensor
from palladio.model.quantization_config import QuantizationConfig
from palladio.model.weights.file_matrix import FileMatrix
from palladio.model.weights.scaled import Scaled

FLOAT8 = "F8_E4M3"
SCALE_SUFFIXES = ("_scale_inv", "_scale")  # both are multiplied, whatever the name says


def scale_names(
    name: str, tensor: StoredTensor, quantization: QuantizationConfig | None, tensors: Mapping[str, StoredTensor]
) -> list[str]:
    """Of a float8 tensor's scales, those that are there; none if it is not quantized."""
    if tensor.dtype != FLOAT8 or quantization is None:
        return []
    return [name + suffix for suffix in SCALE_SUFFIXES if name + suffix in tensors]


def find_scale(
    name: str, tensor: StoredTensor, quantization: QuantizationConfig | None, tensors: Mapping[str, StoredTensor]
) -> StoredTensor | None:
    """A float8 tensor's scale; None: the tensor is not quantized.

    Args:
        name: of the tensor, as in `tensors`.

    Raises:
        CheckpointError: it is missing or has another shape.
    """
    if tensor.dtype != FLOAT8 or quantization is None:
        return None
    found = [tensors[scale] for scale in scale_names(name, tensor, quantization, tensors)]
    if not found:
        raise CheckpointError(f"{tensor} is float8, but its scale {tensor.name + SCALE_SUFFIXES[0]} is missing")
    if len(tensor.shape) != 2:
        raise CheckpointError(f"{tensor} is float8 with {len(tensor.shape)} dimensions; only 2-D weights can be float8")
    scale, num_rows = found[0], tensor.shape[0]
    if quantization.block_size is None:
        expected = [(), (1,), (1, 1), (num_rows,), (num_rows, 1)]
    else:
        expected = [tuple(-(-n // size) for n, size in zip(tensor.shape, quantization.block_size, strict=True))]
    if scale.shape not in expected:
        raise CheckpointError(f"{scale} has shape {scale.shape}; {tensor.name} {tensor.shape} needs {expected[0]}")
    return scale


def check_kind(slot: Slot, tensor: StoredTensor, scale: StoredTensor | None) -> None:
    """
    Raises:
        CheckpointError: a weight of this kind cannot be made of a tensor that is stored like this.
    """
    if not isinstance(slot.weight, Scaled):
        return
    storage = slot.weight.kind.storage
    if storage == "int8" and scale is not None:
        raise CheckpointError(f"{tensor} is float8, and cannot be made int8: give a checkpoint that is not quantized")
    if storage == "float8_e4m3fn" and scale is None:
        raise CheckpointError(
            f"{tensor} has dtype {tensor.dtype}, where {slot.name} is kept as float8: give a checkpoint that is "
            "quantized in the same way"
        )


def file_matrix(
    checkpoint: Checkpoint, quantization: QuantizationConfig | None, tensor: StoredTensor, scale: StoredTensor | None
) -> FileMatrix:
    """A tensor with its scale.

    Raises:
        CheckpointError: a scale is not a number.
    """
    values = checkpoint.read(tensor)
    if scale is None:
        return FileMatrix(values)
    rows, columns = (quantization and quantization.block_size) or values.shape
    scales = checkpoint.read(scale).astype(np.float32)
    if not np.isfinite(scales).all():
        raise CheckpointError(f"{scale} has values that are not finite; {tensor.name} cannot be read with it")
    if rows == values.shape[0] and scales.size == rows > 1:
        rows = 1  # one scale a row
    return FileMatrix(values, scales.reshape(-(-values.shape[0] // rows), -1), (rows, columns))
