"""compressed-tensors checkpoints: groups of modules, each with a scheme: float8, int8, or packed 4 and 8 bits."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.formats.fp8 import FLOAT8, float8_matrix
from palladio.model.formats.packing import unpack_columns, unpack_rows
from palladio.model.formats.stored_format import (
    DAMAGED,
    MAX_BLOCK,
    OF_ANOTHER,
    StoredFormat,
    StoredMatrix,
    Tensor,
    Tensors,
    check_bits,
    check_groups,
    expect,
    group_size,
    matches,
    module_of,
    names_in,
    required,
    scales_of,
)
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
_KINDS: Mapping[tuple[Any, Any], Any] = {("float", 8): "float8_e4m3fn", ("int", 8): "int8", ("int", 4): "int4"}
_SCALES = ("F32", "BF16", "F16")
_CLASS = re.compile(r"[A-Z]\w*")  # of modules, such as Linear


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The storage of modules.

    Attributes:
        targets: names and patterns of modules; the name of a class matches all of them.
        storage: type of the numbers.
        bits: bits of each number.
        group: inputs that share a scale; None: all.
        block: rows and columns that share a scale, for float8; None: scales are per tensor, row or group.
        is_symmetric: there are no zero points.
        has_order: groups are not contiguous: `weight_g_idx` has the group of each input.
    """

    targets: tuple[str, ...]
    storage: Any
    bits: int
    group: int | None
    block: tuple[int, int] | None
    is_symmetric: bool
    has_order: bool

    @classmethod
    def of(cls, found: object, where: str) -> Self:
        """Read a scheme.

        Raises:
            ConfigError: it says something unsupported.
        """
        if not isinstance(found, Mapping) or not isinstance(found.get("weights"), Mapping):
            raise ConfigError(f"{where} must be an object with `weights`, found {shown(found)}")
        keys = Keys(found["weights"], f"{where}.weights.")
        bits, number = keys.count("num_bits"), keys.values.get("type", "int")
        if found.get("format") not in (None, *_FORMATS):
            raise ConfigError(f"{where}.format: {shown(found['format'])} is not supported: {', '.join(_FORMATS)} are")
        if (number, bits) not in _KINDS:
            raise ConfigError(
                f"{where}.weights.num_bits: {bits} of type {shown(number)} is not supported; supported: "
                f"{', '.join(f'{size} of {kind!r}' for kind, size in _KINDS)}"
            )
        strategy = keys.values.get("strategy") or "tensor"
        block = None
        if strategy == "block":
            block = _block(keys, where)
        elif strategy not in ("tensor", "channel", "group"):
            raise ConfigError(
                f"{where}.weights.strategy: {shown(strategy)} is not supported; "
                "supported: tensor, channel, group, block"
            )
        group = group_size(keys) if strategy == "group" else None if block is None else block[1]
        if number == "float" and strategy == "group":
            raise ConfigError(f"{where}.weights.strategy: 'group' is not supported for type 'float'")
        order = keys.values.get("actorder") in ("group", "dynamic", True)
        targets = names_in(Keys(found, f"{where}."), "targets")
        symmetric = keys.flag("symmetric", default=True)
        return cls(targets, _KINDS[number, bits], bits, group, block, symmetric, order and group is not None)

    def names(self, module: str) -> bool:
        """Return whether the scheme applies to this module."""
        return any(_CLASS.fullmatch(target) or matches((target,), module) for target in self.targets)

    @property
    def kind(self) -> WeightKind | None:
        """The kind of the weights; None: they become dense, as in GPTQ."""
        return None if self.has_order else WeightKind(self.storage, self.group, has_zeros=not self.is_symmetric)


@dataclasses.dataclass(frozen=True)
class CompressedTensors(StoredFormat):
    """`weight` or `weight_packed`, with `weight_scale` and perhaps `weight_zero_point` and `weight_g_idx`.

    Attributes:
        schemes: the first one that matches a module applies.
        ignored: modules that are stored plainly.
    """

    schemes: tuple[Scheme, ...]
    ignored: tuple[str, ...] = ()

    title: ClassVar[str] = "compressed-tensors"
    flags: ClassVar[tuple[str, ...]] = ("compressed-tensors", "compressed_tensors")

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config.

        Raises:
            ConfigError: it says something unsupported.
        """
        stored, groups = keys.values.get("format"), keys.values.get("config_groups")
        if stored not in (*_FORMATS, "mixed-precision"):
            raise ConfigError(
                f"quantization_config.format: {shown(stored)} is not supported; supported: {', '.join(_FORMATS)}"
            )
        for key, neutral in (("sparsity_config", "dense"), ("transform_config", None)):
            other = keys.values.get(key)
            if other and not (isinstance(other, Mapping) and other.get("format") == neutral is not None):
                raise ConfigError(f"quantization_config.{key}: {shown(other)} is not supported")
        if not isinstance(groups, Mapping) or not groups:
            raise ConfigError(f"quantization_config.config_groups must be an object, found {shown(groups)}")
        where = "quantization_config.config_groups."
        schemes = tuple(Scheme.of(group, f"{where}{name}") for name, group in groups.items())
        return cls(schemes, names_in(keys, "ignore"))

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of a module; None: none matches it."""
        return next((scheme for scheme in self.schemes if scheme.names(module)), None)

    def kind(self, module: str) -> WeightKind | None:
        scheme = None if matches(self.ignored, module) else self.scheme_of(module)
        return None if scheme is None else scheme.kind

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        """Find the tensors of a matrix, as StoredFormat.find. The tensors decide: one with neither packed nor 8-bit
        numbers is plain."""
        module = module_of(name)
        weight = tensors.get(f"{module}.weight_packed") or tensors.get(name)
        if weight is None or (weight.dtype not in (FLOAT8, "I8") and not weight.name.endswith("weight_packed")):
            return None
        scheme = self.scheme_of(module) or (self.schemes[0] if len(self.schemes) == 1 else None)
        if scheme is None:
            raise CheckpointError(
                f"{weight} is quantized, but no target in config_groups names its module: {OF_ANOTHER}"
            )
        if weight.dtype == FLOAT8:
            return float8_matrix(name, tensors, scheme.block, parts)
        if scheme.storage == "float8_e4m3fn":
            raise CheckpointError(
                f"{weight} has dtype {weight.dtype}, but type in config_groups is float: {OF_ANOTHER}"
            )
        return _whole_numbers(module, weight, scheme, tensors)


def _whole_numbers(module: str, weight: Tensor, scheme: Scheme, tensors: Tensors) -> StoredMatrix:
    is_packed = weight.dtype == "I32"
    of = f"{weight} of {scheme.bits} bits in groups of {scheme.group or 'all inputs'}"
    expect(weight, [(*weight.shape, 1, 1)[:2]], ["I32" if is_packed else "I8"], of)
    num_outputs, packed = weight.shape[0], 32 // scheme.bits
    read = [weight, required([f"{module}.weight_scale"], tensors, weight)]
    num_inputs = weight.shape[1] * (packed if is_packed else 1)
    if scheme.group is not None:
        num_groups = -(-num_inputs // scheme.group)
        shapes: list[tuple[int, ...]] = [(num_outputs, num_groups)]
    else:
        shapes, num_groups = [(num_outputs, 1), (num_outputs,), (1,), (), (1, 1)], 1
    expect(read[1], shapes, _SCALES, of)
    has_zeros = not scheme.is_symmetric or f"{module}.weight_zero_point" in tensors
    if has_zeros:
        zeros = required([f"{module}.weight_zero_point"], tensors, weight)
        rows = -(-num_outputs // packed)
        expect(zeros, [(rows, num_groups)] if is_packed else shapes, ["I32" if is_packed else "I8"], of)
        read.append(zeros)
    if scheme.has_order or (scheme.group is not None and f"{module}.weight_g_idx" in tensors):
        read.append(required([f"{module}.weight_g_idx"], tensors, weight))
        expect(read[-1], [(num_inputs,)], ["I32"], of)
    else:
        check_groups(weight, num_inputs, scheme.group)
    if is_packed and f"{module}.weight_shape" in tensors:
        read.append(tensors[f"{module}.weight_shape"])
        expect(read[-1], [(2,)], ["I64", "I32"], of)
    others = ("weight_shape", "weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point", "output_scale")
    names = [f"{module}.weight_packed" if is_packed else f"{module}.weight", f"{module}.weight_scale"]
    names += [f"{module}.{part}" for part in others if f"{module}.{part}" in tensors]
    unpack = functools.partial(_unpack, scheme, read, (num_inputs, num_groups))
    return StoredMatrix(tuple(names), tuple(read), (num_outputs, num_inputs), scheme.kind, unpack)


def _unpack(
    scheme: Scheme, tensors: Sequence[Tensor], counts: tuple[int, int], arrays: Sequence[HostArray]
) -> FileMatrix:
    """Unpack a matrix.

    Args:
        tensors: the tensors that `arrays` were read from.
        counts: numbers of inputs and of groups.
    """
    weight, scales, *rest = arrays
    scale, (num_inputs, num_groups) = tensors[1], counts
    others = {tensor.name.rpartition(".")[2]: (tensor, array) for tensor, array in zip(tensors[2:], rest, strict=True)}
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.dtype == np.int8:
            check_bits(tensor, array, scheme.bits)
    values = unpack_columns(weight, scheme.bits) if weight.dtype == np.int32 else weight
    if (stated := others.get("weight_shape")) and tuple(stated[1]) != (len(values), num_inputs):
        raise CheckpointError(
            f"{stated[0]} is {stated[1].tolist()}, but {tensors[0]} has {[len(values), num_inputs]}: {DAMAGED}"
        )
    factors = np.broadcast_to(scales_of(scale, scales).reshape(-1, num_groups), (len(values), num_groups))
    zeros_tensor, zeros = others.get("weight_zero_point", (None, None))
    if zeros is not None and zeros.dtype == np.int32:
        zeros = unpack_rows(zeros, scheme.bits)[: len(values)]
    if zeros is not None and scheme.is_symmetric:
        if zeros.any():
            raise CheckpointError(
                f"{zeros_tensor} has zero points other than 0, but symmetric in quantization_config.config_groups is "
                "true: set it to false in config.json"
            )
        zeros = None
    if zeros is not None:
        zeros = np.broadcast_to(zeros.reshape(-1, num_groups), factors.shape)
    block = (1, scheme.group or num_inputs)
    order, groups = others.get("weight_g_idx", (None, None))
    if groups is not None and not scheme.has_order and (groups != np.arange(num_inputs) // block[1]).any():
        raise CheckpointError(
            f"{order} has an order of its own, but actorder in quantization_config.config_groups "
            'is not "group": set actorder to "group" in config.json'
        )
    if groups is None or not scheme.has_order:
        return FileMatrix(values, factors, block, zeros)
    if groups.min() < 0 or groups.max() >= num_groups:
        raise CheckpointError(f"{order} names groups outside of 0 … {num_groups - 1}: {DAMAGED}")
    wide = values.astype(np.float32) - (0 if zeros is None else zeros[:, groups])
    return FileMatrix(wide * factors[:, groups])


def _block(keys: Keys, where: str) -> tuple[int, int]:
    block = keys.values.get("block_structure")
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and 0 < n <= MAX_BLOCK for n in block)):
        raise ConfigError(f"{where}.weights.block_structure must be two numbers, found {shown(block)}")
    return block[0], block[1]
