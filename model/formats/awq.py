"""AWQ checkpoints: 4 bits, packed along the outputs in an order of their own, (q - z) · s."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, Self

from palladio.model.base.config_keys import Keys
from palladio.model.formats.packing import unpack_columns
from palladio.model.formats.stored_format import (
    StoredFormat,
    StoredMatrix,
    Tensor,
    Tensors,
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

BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column, of each eight, that is in the lowest 4 bits, in the next…
_PACKED = 32 // BITS


@dataclasses.dataclass(frozen=True)
class Awq(StoredFormat):
    """`qweight` i32[in, out / 8], `qzeros` i32[in / group, out / 8], `scales` [in / group, out].

    Attributes:
        group: inputs that share a scale; None: all.
        ignored: modules that are stored plainly.
    """

    group: int | None
    ignored: tuple[str, ...] = ()

    title: ClassVar[str] = "AWQ"
    flags: ClassVar[tuple[str, ...]] = ("awq", "awq_marlin", "moe_wna16")

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config.

        Raises:
            ConfigError: it says something unsupported.
        """
        older = {"w_bit": "bits", "q_group_size": "group_size"}  # as AutoAWQ's own file has them
        keys = keys.renamed(older)
        keys.require("bits", BITS, default=BITS)
        if keys.values.get("version") != "GEMM":  # as some tools write it
            keys.require("version", "gemm", default="gemm")
        keys.require("zero_point", True, default=True)
        return cls(group_size(keys), names_in(keys, "modules_to_not_convert"))

    def kind(self, module: str) -> WeightKind | None:
        return None if matches(self.ignored, module) else WeightKind("int4", self.group, has_zeros=True)

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        module = module_of(name)
        names = tuple(f"{module}.{part}" for part in ("qweight", "scales", "qzeros"))
        weight = tensors.get(names[0])
        if weight is None:
            return None
        of = f"{weight} in groups of {self.group or 'all inputs'}"
        expect(weight, [(*weight.shape, 1, 1)[:2]], ["I32"], of)
        num_inputs, num_packed = weight.shape
        check_groups(weight, num_inputs, self.group)
        scales, zeros = (required([part], tensors, weight) for part in names[1:])
        num_groups = -(-num_inputs // (self.group or num_inputs))
        expect(scales, [(num_groups, num_packed * _PACKED)], ["F16", "BF16", "F32"], of)
        expect(zeros, [(num_groups, num_packed)], ["I32"], of)
        shape = (num_packed * _PACKED, num_inputs)
        unpack = functools.partial(_unpack, scales, self.group or num_inputs)
        kind = WeightKind("int4", self.group, has_zeros=True)
        return StoredMatrix(names, (weight, scales, zeros), shape, kind, unpack)


def _unpack(scale: Tensor, group: int, arrays: Sequence[HostArray]) -> FileMatrix:
    weight, scales, zeros = arrays
    values, lows = (unpack_columns(packed, BITS, ORDER).T for packed in (weight, zeros))
    return FileMatrix(values, scales_of(scale, scales).T, (1, group), lows)
