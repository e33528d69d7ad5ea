"""The tensors of the steps after pooling, which sentence-transformers keeps in folders of their own."""

from pathlib import Path

import numpy as np

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_file
from palladio.model.loading.readers.safetensors_file import FLOATS, Array, SafetensorsFile, StoredTensor
from palladio.model.pooling.pooling_spec import PoolingSpec

FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"


def read_pooling_weights(path: Path, spec: PoolingSpec, *, is_dummy: bool = False, seed: int = 0) -> list[Array]:
    """Read the tensors of `spec.tensors`, in float32.

    Args:
        path: the model's folder.
        is_dummy: make random numbers in place of the files, from `seed`.

    Raises:
        CheckpointError: a file is missing or damaged, or holds other tensors than the modules' files promise.
    """
    if is_dummy:
        random = np.random.default_rng(seed)
        return [random.standard_normal(shape, np.float32) / shape[-1] ** 0.5 for _, _, shape in spec.tensors]
    found: list[Array] = []
    for folder in dict.fromkeys(folder for folder, _, _ in spec.tensors):
        wanted = {name: shape for other, name, shape in spec.tensors if other == folder}
        found += _read(path, folder, wanted)
    return found


def _read(path: Path, folder: str, wanted: dict[str, tuple[int, ...]]) -> list[Array]:
    file = find_file(path, f"{folder}/{FILE}")
    if file is None:
        has_torch = find_file(path, f"{folder}/{TORCH_FILE}") is not None
        why = f"{TORCH_FILE} in its place is not read: convert it to safetensors" if has_torch else "download it again"
        raise CheckpointError(f"{path / folder / FILE} is missing; {why}")
    opened = SafetensorsFile(file)
    unexpected = sorted(opened.tensors.keys() - wanted.keys())
    if unexpected:
        raise CheckpointError(f"unexpected keys in checkpoint {file}: {', '.join(unexpected[:5])[:500]}")
    arrays = [_checked(opened, opened.tensors.get(name), name, shape) for name, shape in wanted.items()]
    opened.close()
    return arrays


def _checked(opened: SafetensorsFile, tensor: StoredTensor | None, name: str, shape: tuple[int, ...]) -> Array:
    if tensor is None:
        raise CheckpointError(f"missing keys in checkpoint {opened.path}: {name}")
    if tensor.shape != shape:
        raise CheckpointError(f"{tensor} has shape {tensor.shape}, but config.json beside it promises {shape}")
    if tensor.dtype not in FLOATS:
        raise CheckpointError(f"{tensor} has dtype {tensor.dtype}; supported: {', '.join(FLOATS)}")
    return opened.read(tensor).astype(np.float32)
