"""A checkpoint: every tensor of a model directory, in however many files, or of a GGUF file."""

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from palladio.model.errors import CheckpointError
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.loading.gguf_tensors import GgufTensors
from palladio.model.loading.safetensors_file import Array, SafetensorsFile, StoredTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class Checkpoint:
    """The tensors of a model directory or a GGUF file, by their names in safetensors. A context manager; close it when
    the arrays are copied."""

    def __init__(self, path: Path) -> None:
        """Opens every file. Args: path: the directory, or the file.

        Raises:
            CheckpointError: no safetensors, a file is missing or damaged, or two files hold the same tensor.
        """
        self._files: dict[str, SafetensorsFile | GgufTensors]
        if is_gguf(path):
            self._files = {path.name: GgufTensors(path)}
        else:
            self._files = {name: SafetensorsFile(path / name) for name in _file_names(path)}
        self.tensors: dict[str, StoredTensor] = {}
        for file in self._files.values():
            for name, tensor in file.tensors.items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"duplicate key in checkpoint: {tensor} is also in {self.tensors[name].file.name}"
                    )
                self.tensors[name] = tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else a view may live on in the traceback, and the map goes with it
            for file in self._files.values():
                file.close()

    def read(self, tensor: StoredTensor) -> Array:
        """A view; see SafetensorsFile.read."""
        return self._files[tensor.file.name].read(tensor)

    def release(self, tensor: StoredTensor) -> None:
        self._files[tensor.file.name].release(tensor)


def has_weights(path: Path) -> bool:
    """Whether a directory holds safetensors, whole or not, or a path is a GGUF file."""
    return is_gguf(path) or (path / INDEX_NAME).is_file() or any(path.glob("*.safetensors"))


def _file_names(path: Path) -> list[str]:
    """The files that make the checkpoint, in the order of preference of transformers."""
    if (path / SINGLE_NAME).is_file():
        return [SINGLE_NAME]
    if (path / INDEX_NAME).is_file():
        return _indexed_names(path)
    found = sorted(file.name for file in path.glob("*.safetensors"))
    # Mistral's repositories hold the weights a second time, under other names.
    found = [name for name in found if not name.startswith("consolidated")] or found
    if not found:
        raise CheckpointError(
            f"no *.safetensors files in {path}; PyTorch .bin files are not supported: convert them to safetensors"
        )
    return found


def _indexed_names(path: Path) -> list[str]:
    try:
        weight_map = json.loads((path / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read {path / INDEX_NAME}: {error!r}") from error
    for name in names:
        if not (path / name).is_file():
            example = next(tensor for tensor, file in weight_map.items() if file == name)
            raise CheckpointError(
                f"{path / name} is missing; {INDEX_NAME} lists tensor {example} in it. Download the model again"
            )
    return names
