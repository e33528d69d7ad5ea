"""GgufTensors: a GGUF model as the checkpoint that it was made of: the same names, and experts one by one."""

from collections.abc import Iterator
from pathlib import Path

from palladio.model.gguf.gguf_config import config_of_gguf
from palladio.model.gguf.gguf_file import GgufTensor
from palladio.model.gguf.gguf_model import GgufModel
from palladio.model.gguf.gguf_names import ROPE_DIVISORS, checkpoint_name, is_stacked
from palladio.model.loading.readers.safetensors_file import Array, StoredTensor


class GgufTensors:
    """Its open files. Arrays read from them are views of their maps: use them before `close`.

    Attributes:
        files: paths, of all parts.
        tensors: by name in safetensors; each knows its file, and its name there.
    """

    def __init__(self, path: Path) -> None:
        """
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
        """A read-only view: of numbers, or of the bytes of blocks; nothing is read from disk before it is touched."""
        return self._model.files[tensor.file].read(_found(tensor))

    def release(self, tensor: StoredTensor) -> None:
        """Gives the tensor's pages back to the system. Views stay valid: they would be read again."""
        self._model.files[tensor.file].release(_found(tensor))

    def close(self) -> None:
        """Views must be gone."""
        self._model.close()


def _experts(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """The tensor, or each of the experts that it holds."""
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
