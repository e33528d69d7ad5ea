"""StoredFormat: the interface of the formats of quantized checkpoints."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

MAX_BLOCK = 1 << 16  # of a quantized matrix, in one direction
MAX_NAMES = 10_000  # of modules that are not quantized
_MAX_PATTERN = 1_000  # characters
_MAX_SCALE = np.float32(1e35)  # times the largest number of any format, 448, a float32 is still finite
DAMAGED = "the checkpoint is damaged, download it again"
OF_ANOTHER = f"quantization_config is of another checkpoint, or {DAMAGED}"  # not always in config.json: QUANT_FILES


class Tensor(Protocol):
    """A tensor of a checkpoint. `str` shows its name and file."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


Tensors = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Tensors of a checkpoint that make up one matrix.

    Attributes:
        names: names of all of them, as in the checkpoint's mapping, including tensors that are never read.
        tensors: the tensors to read.
        shape: shape of the matrix, its inputs last: [out, in], or [E, out, in] of all experts.
        kind: kind of the weight that can keep it as stored; None: only a dense one.
        unpack: makes the matrix of the values of `tensors`.
        is_transposed: the tensor, which is the matrix, has its inputs before its outputs.
    """

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    shape: tuple[int, ...]
    kind: WeightKind | None
    unpack: Callable[[Sequence[HostArray]], FileMatrix]
    is_transposed: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether its numbers are not those of one plain tensor."""
        return self.kind is not None or len(self.tensors) > 1


class StoredFormat:
    """The way in which a checkpoint stores quantized matrices.

    Attributes:
        title: name of the format in messages and documents.
        flags: values of --quantization that name it, those of other servers included.
    """

    title: ClassVar[str]
    flags: ClassVar[tuple[str, ...]]

    def kind(self, module: str) -> WeightKind | None:
        """Return the kind of a module's weights by config.json alone; None: it is stored plainly, or becomes dense.

        Args:
            module: its name as in the checkpoint.
        """
        raise NotImplementedError

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        """Find the tensors of a matrix; None: it is not stored in this format.

        Args:
            name: the name that its tensor would have if it were stored plainly.
            parts: rows of each matrix, where one tensor holds several, one after another; they may have a scale each.

        Raises:
            CheckpointError: a tensor is missing, or has another shape or dtype than the others ask for.
        """
        raise NotImplementedError


def module_of(name: str) -> str:
    """Return the module of a tensor."""
    return name.removesuffix(".weight")


def matches(patterns: Sequence[str], module: str) -> bool:
    """Return whether a pattern matches a module: `re:` and a regular expression for the beginning of its name, a
    pattern with asterisks, or consecutive whole parts of its name: `layers.1` does not match layer 10, nor `gate` a
    `gate_proj`."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
        elif "*" in pattern:
            if fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"{pattern}.*"):
                return True
        elif f".{pattern.strip('.')}." in f".{module}.":
            return True
    return False


def names_in(keys: Keys, key: str) -> tuple[str, ...]:
    """Read a list of names and patterns of modules.

    Raises:
        ConfigError: it is no list of them.
    """
    names = keys.values.get(key)
    if names is None:
        return ()
    is_list = isinstance(names, list) and len(names) <= MAX_NAMES
    if not is_list or not all(isinstance(name, str) and 0 < len(name) <= _MAX_PATTERN for name in names):
        raise ConfigError(f"quantization_config.{key} must be a list of module names, found {shown(names)}")
    for name in names:
        check_pattern(key, name)
    return tuple(names)


def check_pattern(key: str, pattern: str) -> None:
    """Check a pattern that begins with `re:`.

    Raises:
        ConfigError: it is no regular expression.
    """
    try:
        re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
    except re.error as error:
        raise ConfigError(
            f"quantization_config.{key}: {shown(pattern)} is not a regular expression: {error}"
        ) from error


def group_size(keys: Keys) -> int | None:
    """Read the group size; None: all inputs (-1).

    Raises:
        ConfigError: it is no size.
    """
    if keys.values.get("group_size") == -1:
        return None
    return keys.count("group_size", most=MAX_BLOCK)


def required(names: Sequence[str], tensors: Tensors, of: Tensor) -> Tensor:
    """Return the first of these tensors that exists.

    Raises:
        CheckpointError: none does.
    """
    found = next((tensors[name] for name in names if name in tensors), None)
    if found is None:
        raise CheckpointError(
            f"{of} is quantized, but {names[0]} is missing: the checkpoint is incomplete, download it again"
        )
    return found


def expect(tensor: Tensor, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], of: str) -> None:
    """Check the shape and the dtype of a tensor.

    Args:
        shapes, dtypes: the allowed ones. No size may be 0.
        of: what asks for them, for messages.

    Raises:
        CheckpointError: the tensor has another shape or dtype.
    """
    if tensor.shape not in shapes:
        raise CheckpointError(f"{tensor} has shape {tensor.shape}; {of} needs {shapes[0]}: {OF_ANOTHER}")
    if 0 in tensor.shape:
        raise CheckpointError(f"{tensor} has shape {tensor.shape}, and so no numbers: {DAMAGED}")
    if tensor.dtype not in dtypes:
        raise CheckpointError(f"{tensor} has dtype {tensor.dtype}; {of} needs {' or '.join(dtypes)}: {OF_ANOTHER}")


def check_groups(tensor: Tensor, num_inputs: int, group: int | None) -> None:
    """Check that groups divide the inputs of a matrix whose group size follows only from the number of groups. Other
    group sizes give the same number if the last group may be short.

    Raises:
        CheckpointError: groups do not divide its inputs.
    """
    if group is not None and num_inputs > group and num_inputs % group:
        raise CheckpointError(f"{tensor} has {num_inputs} inputs, which groups of {group} do not divide: {OF_ANOTHER}")


def check_bits(tensor: Tensor, values: HostArray, bits: int) -> None:
    """Check signed numbers that the file stores in a byte each.

    Raises:
        CheckpointError: a number does not fit `bits` bits.
    """
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    if bits < 8 and values.size and (values.min() < low or values.max() > high):
        raise CheckpointError(f"{tensor} has numbers outside of {low} … {high}, those of {bits} bits: {OF_ANOTHER}")


def scales_of(tensor: Tensor, values: HostArray) -> HostArray:
    """Return scales in float32.

    Raises:
        CheckpointError: a scale is not finite, or makes a weight that is not.
    """
    scales = values.astype(np.float32)
    if scales.size and not np.abs(scales).max() <= _MAX_SCALE:  # of NaN, no comparison holds
        raise CheckpointError(f"{tensor} has scales that are not finite, or over {_MAX_SCALE:.0e}: {DAMAGED}")
    return scales
