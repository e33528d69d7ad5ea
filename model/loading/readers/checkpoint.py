"""A checkpoint: every tensor of a model directory, in however many files, or of a GGUF file."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_file, find_files
from palladio.model.files.small_files import MAX_TABLE_BYTES, read_object
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.loading.readers.gguf_tensors import GgufTensors
from palladio.model.loading.readers.safetensors_file import Array, SafetensorsFile, StoredTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_FILES = 4096  # published checkpoints have up to 200
MAX_TENSORS = 1 << 20  # of all files; published ones have up to half a million


class Checkpoint:
    """The tensors of a model directory or a GGUF file, by their names in safetensors. A context manager; close it after
    the arrays are copied."""

    def __init__(self, path: Path) -> None:
        """Open every file.

        Args:
            path: the directory, or the GGUF file.

        Raises:
            CheckpointError: no safetensors, a file is missing or damaged, or two files hold the same tensor.
        """
        self._files: dict[Path, SafetensorsFile | GgufTensors]
        if is_gguf(path):
            model = GgufTensors(path)
            self._files = dict.fromkeys(model.files, model)
        else:
            self._files = dict(_open_all(weight_files(path)))
        self.tensors: dict[str, StoredTensor] = {}
        for file in dict.fromkeys(self._files.values()):
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
            for file in dict.fromkeys(self._files.values()):
                file.close()

    def read(self, tensor: StoredTensor) -> Array:
        """Return a view of a tensor, as SafetensorsFile.read."""
        return self._files[tensor.file].read(tensor)

    def release(self, tensor: StoredTensor) -> None:
        self._files[tensor.file].release(tensor)


def _open_all(files: list[Path]) -> Iterator[tuple[Path, SafetensorsFile]]:
    num_tensors = 0
    for path in files:
        file = SafetensorsFile(path)
        num_tensors += len(file.tensors)
        if num_tensors > MAX_TENSORS:
            raise CheckpointError(
                f"{path.parent} has more than {MAX_TENSORS:,} tensors, {num_tensors:,} up to {path.name}"
            )
        yield path, file


def has_weights(path: Path) -> bool:
    """Return whether a directory holds safetensors, complete or not, or a path is a GGUF file."""
    return is_gguf(path) or (path / INDEX_NAME).is_file() or any(path.glob("*.safetensors"))


def weight_files(path: Path) -> list[Path]:
    """Return the files that make up the checkpoint of a directory, by the order of preference of transformers.

    Raises:
        CheckpointError: there are none, the index is damaged, or a file is missing, no regular one, or lies elsewhere.
    """
    single = find_file(path, SINGLE_NAME)
    if single is not None:
        return [single]
    index = read_object(path, INDEX_NAME, MAX_TABLE_BYTES)
    if index is not None:
        return _indexed_files(path, index.get("weight_map"))
    found = find_files(path, "*.safetensors")
    # Mistral's repositories hold the weights a second time, under other names.
    found = [file for file in found if not file.name.startswith("consolidated")] or found
    if not found:
        torch_file = next(iter(find_files(path, "pytorch_model*.bin")), None)
        raise CheckpointError(
            f"no *.safetensors files in {path}; PyTorch .bin files are not supported: convert them to safetensors"
            if torch_file is None
            else f"{torch_file} is not read, and there are no *.safetensors files beside it: convert it to safetensors"
        )
    return found


def _indexed_files(path: Path, weight_map: object) -> list[Path]:
    """Return the files that an index names.

    Args:
        weight_map: name of a tensor → name of its file, which may be in a folder below.
    """
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(
            f"cannot read {path / INDEX_NAME}: weight_map must give the name of a file to each tensor"
        )
    found: dict[str, Path] = {}
    if (count := len({*weight_map.values()})) > MAX_FILES:
        raise CheckpointError(f"{path / INDEX_NAME} names {count:,} files, over the limit of {MAX_FILES:,}")
    for tensor, name in weight_map.items():
        usual = str(PurePosixPath(name))  # ./a is a, too
        if usual in found:
            continue
        file = find_file(path, name)
        if file is None:
            raise CheckpointError(
                f"{str(path / name)[:500]} is missing; {INDEX_NAME} lists tensor {tensor[:500]} in it. Download the "
                "model again"
            )
        found[usual] = file
    return [found[name] for name in sorted(found)]
