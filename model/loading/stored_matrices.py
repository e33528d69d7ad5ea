"""Matrices of a checkpoint, in one tensor or several: the tensors of each, and the check that a weight can use it."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from palladio.model.base.errors import CheckpointError
from palladio.model.formats.fp8 import FLOAT8
from palladio.model.formats.stored_format import StoredFormat, StoredMatrix, Tensor, module_of
from palladio.model.loading.layout.parameters import Slot
from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.safetensors_file import FLOATS, StoredTensor
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind
from palladio.model.weights.scaled import Scaled

Tensors = Mapping[str, StoredTensor]
_OF_QUANTIZED = (".weight_scale", ".weight_scale_inv", ".qweight", ".weight_packed", "_proj_blocks")  # no module's own


def find_matrix(
    name: str,
    tensors: Tensors,
    stored: StoredFormat | None,
    *,
    inputs_first: bool = False,
    parts: Sequence[int] = (),
) -> StoredMatrix | None:
    """Find a matrix, or any other parameter; None: there is none.

    Args:
        name: name of its tensor if it is stored plainly.
        stored: the format of quantized matrices; None: the checkpoint has none.
        inputs_first: see WeightRule.
        parts: see StoredFormat.find.

    Raises:
        CheckpointError: tensors are missing, or do not fit together.
    """
    found = None if stored is None else stored.find(name, tensors, parts)
    tensor = tensors.get(name)
    if found is not None or tensor is None:
        return found
    if tensor.dtype not in FLOATS or (tensor.dtype == FLOAT8 and stored is not None):
        how = "has no quantization_config" if stored is None else f"says {stored.title}"
        raise CheckpointError(
            f"{tensor} has dtype {tensor.dtype}, as quantized weights do, and config.json {how}: it does not belong to "
            "this checkpoint"
        )
    if inputs_first and len(tensor.shape) > 1:
        *lead, size, out = tensor.shape
        shape = (*lead, out, size)
        return StoredMatrix((name,), (tensor,), shape, None, _transposed, is_transposed=True)
    return StoredMatrix((name,), (tensor,), tensor.shape, None, lambda arrays: FileMatrix(arrays[0]))


def _transposed(arrays: Sequence[HostArray]) -> FileMatrix:
    return FileMatrix(arrays[0].swapaxes(-1, -2))


def expect_plain(tensors: Tensors) -> None:
    """Check that no tensor belongs to a quantized weight, for a config.json without quantization.

    Raises:
        CheckpointError: a tensor does.
    """
    quantized = next((tensor for name, tensor in tensors.items() if name.endswith(_OF_QUANTIZED)), None)
    if quantized is not None:
        raise CheckpointError(
            f"{quantized} is of quantized weights, but config.json has no quantization_config: download config.json "
            "again, from the repository of the quantized checkpoint"
        )


def zero_biases(checkpoint: Checkpoint, tensors: Tensors, quantized: Iterable[str], used: Collection[str]) -> set[str]:
    """Return the names of unused biases of quantized matrices: AutoGPTQ writes zeros for every layer without a bias.

    Args:
        quantized: names of the matrices.
        used: names of tensors that are read.

    Raises:
        CheckpointError: one is not zero.
    """
    found = set()
    for name in (f"{module_of(matrix)}.bias" for matrix in quantized):
        tensor = tensors.get(name)
        if tensor is None or name in used or tensor.dtype not in FLOATS:
            continue
        if checkpoint.read(tensor).any():
            raise CheckpointError(
                f"{tensor} is a bias that is not 0, and the model has none there by config.json: it does not belong to "
                "this checkpoint"
            )
        found.add(name)
    return found


def read_matrix(checkpoint: Checkpoint, matrix: StoredMatrix) -> FileMatrix:
    """Read a matrix.

    Raises:
        CheckpointError: its numbers are damaged.
    """
    return matrix.unpack([checkpoint.read(tensor) for tensor in stored_tensors(matrix)])


def stored_tensors(matrix: StoredMatrix) -> tuple[StoredTensor, ...]:
    """Return the tensors of a matrix that are read."""
    return tuple(tensor for tensor in matrix.tensors if isinstance(tensor, StoredTensor))


def host_bytes(matrix: StoredMatrix) -> int:
    """Return the host bytes of a matrix: those of its tensors, and of the 8-bit numbers that they are unpacked or
    quantized to."""
    return sum(tensor.stop - tensor.start for tensor in stored_tensors(matrix)) + math.prod(matrix.shape)


def check_kind(slot: Slot, matrix: StoredMatrix) -> None:
    """Check that the weight of a slot can be made of a matrix.

    Raises:
        CheckpointError: a weight of this kind cannot be made of a matrix that is stored this way.
    """
    if not isinstance(slot.weight, Scaled):
        return
    kind, tensor = slot.weight.kind, matrix.tensors[0]
    if matrix.kind is None and (kind.has_zeros or kind.is_float4):
        raise CheckpointError(_other(tensor, f"has dtype {tensor.dtype}", slot, kind))
    if matrix.kind is None:
        return
    group, own = matrix.kind.group, slot.weight.group
    same_groups = group == own if group is None or own is None else group % own == 0
    forms = ((each.storage, each.has_zeros, each.has_real_zeros) for each in (matrix.kind, kind))
    same_form = len(set(forms)) == 1
    if not same_groups or not same_form:
        raise CheckpointError(_other(tensor, f"is {matrix.kind.name}", slot, kind))


def _other(tensor: Tensor, found: str, slot: Slot, kind: WeightKind) -> str:
    return (
        f"{tensor} {found}, where {slot.name} is kept as {kind.name}: give a checkpoint that is quantized in the same "
        "way"
    )
