"""GPTQ checkpoints: 4 or 8 bits, packed along the inputs, (q - z) · s. The first version of the format stores z - 1."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.formats.packing import unpack_columns, unpack_rows
from palladio.model.formats.stored_format import (
    DAMAGED,
    MAX_NAMES,
    OF_ANOTHER,
    StoredFormat,
    StoredMatrix,
    Tensor,
    Tensors,
    check_groups,
    check_pattern,
    expect,
    group_size,
    module_of,
    required,
    scales_of,
)
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

_WHERE = "config.json, or in quantize_config.json if only that has it"  # as AutoGPTQ wrote it, see QUANT_FILES
_STORAGE: Mapping[int, Any] = {4: "int4", 8: "int8"}


@dataclasses.dataclass(frozen=True)
class Form:
    """The storage of modules.

    Attributes:
        bits: 4 or 8.
        group: inputs that share a scale; None: all.
        is_symmetric: every zero point is half of the range.
        has_order: groups are not contiguous (desc_act): `g_idx` has the group of each input.
    """

    bits: int
    group: int | None
    is_symmetric: bool
    has_order: bool

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read the form.

        Raises:
            ConfigError: it says something unsupported.
        """
        bits = keys.count("bits")
        if bits not in _STORAGE:
            raise ConfigError(f"quantization_config.bits: {bits} is not supported in GPTQ checkpoints; only 4 and 8")
        group, order = group_size(keys), keys.flag("desc_act", default=False)
        return cls(bits, group, keys.flag("sym", default=True), order and group is not None)

    @property
    def kind(self) -> WeightKind | None:
        """The kind of the weights; None: they become dense, since a product would have to reorder activations where
        groups are not contiguous."""
        if self.has_order:
            return None
        return WeightKind(_STORAGE[self.bits], self.group, has_zeros=not self.is_symmetric)


@dataclasses.dataclass(frozen=True)
class Gptq(StoredFormat):
    """`qweight` i32[in · bits / 32, out], `qzeros` i32[groups, out · bits / 32], `scales` [groups, out], `g_idx` [in].

    Attributes:
        form: the form of modules that `dynamic` does not name.
        stores_less: zero points are stored less one ("gptq"), not as they are ("gptq_v2").
        dynamic: pairs of a regular expression for the beginning of a module's name, and the form; None: stored plainly.
    """

    form: Form
    stores_less: bool = True
    dynamic: tuple[tuple[str, Form | None], ...] = ()

    title: ClassVar[str] = "GPTQ"
    flags: ClassVar[tuple[str, ...]] = ("gptq", "gptq_marlin", "moe_wna16")

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config.

        Raises:
            ConfigError: it says something unsupported.
        """
        stored = keys.values.get("checkpoint_format") or keys.values.get("format") or "gptq"
        if stored not in ("gptq", "gptq_v2"):
            raise ConfigError(
                f"quantization_config.checkpoint_format: {shown(stored)} is not supported; only 'gptq' and 'gptq_v2'"
            )
        keys.require("is_marlin_format", False, default=False)
        return cls(Form.of(keys), stored == "gptq", _dynamic(keys))

    def form_of(self, module: str) -> Form | None:
        """Return the form of a module; None: it is stored plainly."""
        for pattern, form in self.dynamic:
            if re.match(pattern, module):
                return form
        return self.form

    def kind(self, module: str) -> WeightKind | None:
        form = self.form_of(module)
        return None if form is None else form.kind

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        module = module_of(name)
        names = [f"{module}.{part}" for part in ("qweight", "scales", "qzeros", "g_idx")]
        weight, form = tensors.get(names[0]), self.form_of(module)
        if weight is None:
            return None
        if form is None:
            raise CheckpointError(
                f"{weight} is quantized, but quantization_config.dynamic says that it is not: {OF_ANOTHER}"
            )
        packed = 32 // form.bits
        of = f"{weight} of {form.bits} bits in groups of {form.group or 'all inputs'}"
        expect(weight, [(*weight.shape, 1, 1)[:2]], ["I32"], of)
        num_inputs, num_outputs = weight.shape[0] * packed, weight.shape[1]
        scales, zeros = (required([part], tensors, weight) for part in names[1:3])
        num_groups = -(-num_inputs // (form.group or num_inputs))
        expect(scales, [(num_groups, num_outputs)], ["F16", "BF16", "F32"], of)
        expect(zeros, [(num_groups, -(-num_outputs // packed))], ["I32"], of)
        read = [weight, scales, zeros]
        if form.has_order or (names[3] in tensors and form.group is not None):
            read.append(required(names[3:], tensors, weight))
            expect(read[3], [(num_inputs,)], ["I32"], of)
        else:
            check_groups(weight, num_inputs, form.group)
        unpack = functools.partial(self._unpack, form, read, num_groups)
        used = tuple(part for part in names if part in tensors)
        return StoredMatrix(used, tuple(read), (num_outputs, num_inputs), form.kind, unpack)

    def _unpack(
        self, form: Form, tensors: Sequence[Tensor], num_groups: int, arrays: Sequence[HostArray]
    ) -> FileMatrix:
        weight, scales, zeros, *order = arrays
        values = unpack_rows(weight, form.bits).T
        factors = scales_of(tensors[1], scales).T
        lows = unpack_columns(zeros, form.bits)[:, : values.shape[0]].T
        if self.stores_less:
            lows += np.int8(1)
            if form.bits == 4:
                lows[lows == 8] = -8  # 15 stands for 0
        if form.is_symmetric and lows.any():
            is_other_form = (lows == (1 if self.stores_less else -1)).all()
            other_form = f"checkpoint_format to {'gptq_v2' if self.stores_less else 'gptq'}"
            raise CheckpointError(
                f"{tensors[2]} has zero points other than {1 << form.bits - 1}, but quantization_config.sym is true: "
                f"set {other_form if is_other_form else 'sym to false'} in {_WHERE}"
            )
        block = (1, form.group or values.shape[1])
        if order and not form.has_order and (order[0] != np.arange(values.shape[1]) // block[1]).any():
            raise CheckpointError(
                f"{tensors[3]} has an order of its own, but quantization_config.desc_act is false: set "
                f"desc_act to true in {_WHERE}"
            )
        if not form.has_order:
            return FileMatrix(values, factors, block, None if form.is_symmetric else lows)
        groups = order[0]
        if groups.min() < 0 or groups.max() >= num_groups:
            raise CheckpointError(f"{tensors[3]} names groups outside of 0 … {num_groups - 1}: {DAMAGED}")
        return FileMatrix((values.astype(np.float32) - lows[:, groups]) * factors[:, groups])


def _dynamic(keys: Keys) -> tuple[tuple[str, Form | None], ...]:
    """Read `dynamic`: `"-:pattern": {}` names modules that are stored plainly, `"+:pattern": {…}` and `"pattern": {…}`
    others."""
    found = keys.values.get("dynamic") or {}
    if not isinstance(found, Mapping) or len(found) > MAX_NAMES:
        raise ConfigError(f"quantization_config.dynamic must be an object of patterns, found {shown(found)}")
    rules: list[tuple[str, Form | None]] = []
    for key, changes in found.items():
        pattern = key.removeprefix("-:").removeprefix("+:")
        check_pattern("dynamic", f"re:{pattern}")
        if key.startswith("-:"):
            rules.append((pattern, None))
        elif isinstance(changes, Mapping):
            rules.append((pattern, Form.of(Keys({**keys.values, **changes}, "quantization_config.dynamic."))))
        else:
            raise ConfigError(f"quantization_config.dynamic.{key} must be an object, found {shown(changes)}")
    return tuple(rules)
