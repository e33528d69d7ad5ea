"""GgufTensors: a GGUF model in the form of the checkpoint that it was made of: the same names, and one tensor for
each expert."""

from collections.abc import Iterator
from pathlib import Path

from palladio.model.gguf.gguf_config import config_of_gguf
from palladio.model.gguf.gguf_file import GgufTensor
from palladio.model.gguf.gguf_model import GgufModel
from palladio.model.gguf.gguf_names import ROPE_DIVISORS, checkpoint_name, is_stacked
from palladio.model.loading.readers.safetensors_file import Array, StoredTensor


class GgufTensors:
    """The open files of a model. Arrays read from them are views of their maps: use them before `close`.

    Attributes:
        files: paths of all parts.
        tensors: by name in safetensors; each tensor has its file, and its name in it.
    """

    def __init__(self, path: Path) -> None:
        """Open all parts of a model.

        Raises:
            CheckpointError: see GgufModel.
            ConfigError: see config_of_gguf.
        """
        (architecture,) = config_of_gguf(path)["architectures"]
        self._model = GgufModel(path)
        self.files = tuple(self._model.files)
        self.tensors: dict[str, StoredTensor] = {}
        for found, file in self._model.tensors.values():
            if found.name != ROPE_DIVISORS:
                name = checkpoint_name(found.name, architecture)
                for number, tensor in enumerate(_experts(found)):
                    self.tensors[name.replace("{expert}", str(number))] = _stored(file.path, tensor)

    def read(self, tensor: StoredTensor) -> Array:
        """Return a read-only view of numbers, or of the bytes of blocks. The disk is read on first use."""
        return self._model.files[tensor.file].read(_found(tensor))

    def release(self, tensor: StoredTensor) -> None:
        """Return the tensor's pages to the system. Views stay valid; using them reads the file again."""
        self._model.files[tensor.file].release(_found(tensor))

    def close(self) -> None:
        """Close the files. No view of them may be left."""
        self._model.close()


def _experts(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """Yield the tensor, or each of the experts that it holds."""
    if not is_stacked(tensor.name) or len(tensor.shape) < 3:
        yield tensor
        return
    num_experts, *shape = tensor.shape
    size = (tensor.stop - tensor.start) // num_experts
    for expert in range(num_experts):
        start = tensor.start + expert * size
        yield GgufTensor(f"{tensor.name}[{expert}]", tensor.dtype, tuple(shape), start, start + size)


def _stored(path: Path, tensor: GgufTensor) -> StoredTensor:
    return StoredTensor(tensor.name, path, tensor.dtype, tensor.shape, tensor.start, tensor.stop)


def _found(tensor: StoredTensor) -> GgufTensor:
    return GgufTensor(tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.stop)
