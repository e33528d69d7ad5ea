"""--quantization: the kinds that weights get while they load, module by module; or the name of the checkpoint's
format."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Self

from palladio.model.base.errors import ConfigError
from palladio.model.config.quantization_config import FORMATS, TABLES, kinds_of
from palladio.model.config.weight_rules import WeightRule
from palladio.model.formats.stored_format import StoredFormat, matches, module_of
from palladio.model.weights.kinds import WeightKind, WeightKinds

_INT4_GROUP = 128
_INT8 = WeightKind("int8")
MADE: Mapping[str, WeightKinds] = {
    "int8": WeightKinds(_INT8),
    "w8a8_int8": WeightKinds(WeightKind("int8", activation_bits=8)),
    "fp8": WeightKinds(WeightKind("float8_e4m3fn")),
    "w8a8_fp8": WeightKinds(WeightKind("float8_e4m3fn", activation_bits=8)),
    "int4": WeightKinds(WeightKind("int4", _INT4_GROUP), others=tuple((table, _INT8) for table in TABLES)),
}
"""Kinds made of plain weights while they load, by the value of the flag. 4 bits are too few for tables."""

FORMAT_FLAGS: tuple[str, ...] = tuple(sorted({flag for each in FORMATS.values() for flag in each.flags} - set(MADE)))
"""Values of the flag that name the format of a checkpoint, those of other servers included."""

QUANTIZATIONS: tuple[str, ...] = (*MADE, "dequantize", *FORMAT_FLAGS)
"""Values of --quantization. Those of MADE: for a checkpoint that is stored this way, or made while any other loads.
dequantize: a quantized checkpoint becomes dense."""

_DENSE = "dense"
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizationFlag:
    """A value of the flag: `int4`, or `int4,lm_head=dense,re:.*down_proj=int8`.

    Attributes:
        name: one of QUANTIZATIONS.
        modules: pairs of a pattern of modules, named as in a checkpoint, and a name of MADE or dense; the first match
            wins.
    """

    name: str
    modules: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a value of the flag.

        Raises:
            ConfigError: it is no value of the flag.
        """
        name, *rest = text.split(",")
        if name not in QUANTIZATIONS:
            raise ConfigError(
                f"--quantization {name} is not supported: int8, fp8, int4, w8a8_int8 and w8a8_fp8 quantize, dequantize "
                f"makes quantized weights dense, and {', '.join(FORMAT_FLAGS)} name the checkpoint's format"
            )
        modules = tuple(part.rpartition("=")[::2] for part in rest)
        for pattern, kind in modules:
            if not pattern or kind not in (*MADE, _DENSE):
                raise ConfigError(
                    f"--quantization {text}: {pattern}={kind} must be MODULE=KIND, with a KIND of {', '.join(MADE)} "
                    f"and {_DENSE}"
                )
            try:
                re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
            except re.error as error:
                raise ConfigError(f"--quantization {text}: {pattern} is not a regular expression: {error}") from error
        if modules and name not in MADE:
            raise ConfigError(f"--quantization {text}: kinds of modules go with one of {', '.join(MADE)}, not {name}")
        return cls(name, modules)

    def made(self, rules: Iterable[WeightRule], num_layers: int) -> WeightKinds:
        """Return the kinds that plain weights get.

        Raises:
            ConfigError: a pattern names no module, or a part of a fused projection.
        """
        usual = MADE[self.name]
        if not self.modules:
            return usual
        used: set[str] = set()
        parts: dict[tuple[str, str], dict[str, WeightKind | None]] = collections.defaultdict(dict)

        def kind(rule: WeightRule, name: str) -> tuple[WeightKind | None]:
            module = module_of(name)
            found = usual.of(rule.param)
            for pattern, value in self.modules:
                if matches((pattern,), module):
                    used.add(pattern)
                    found = None if value == _DENSE else MADE[value].of(rule.param)
                    break
            layer = _LAYER.search(name)
            parts[rule.param, layer[1] if layer else ""][module] = found
            return (found,)

        kinds = kinds_of(rules, num_layers, kind)
        for pattern, _ in self.modules:
            if pattern not in used:
                raise ConfigError(
                    f"--quantization: {pattern} matches no module that can be quantized and has no other kind yet"
                )
        for modules in parts.values():
            if len(set(modules.values())) > 1:
                raise ConfigError(
                    f"--quantization: {', '.join(modules)} are one projection here: give them the same kind"
                )
        return kinds


def weight_kinds(
    quantization: str | None,
    stored: StoredFormat | None,
    of_checkpoint: WeightKinds,
    rules: Iterable[WeightRule],
    num_layers: int,
) -> WeightKinds:
    """Return the kinds of a checkpoint's weights under --quantization.

    Args:
        quantization: the flag; None: keep weights as they are stored.
        of_checkpoint: kinds of the stored weights.

    Raises:
        ConfigError: the flag does not fit the checkpoint.
    """
    if quantization is None:
        return of_checkpoint
    flag = QuantizationFlag.of(quantization)
    if stored is None:
        if flag.name in MADE:
            return flag.made(rules, num_layers)
        raise ConfigError(
            f"--quantization {quantization}: the checkpoint is not quantized (config.json has no quantization_config); "
            f"leave the flag out, or quantize while loading with one of {', '.join(MADE)}"
        )
    if flag.name == "dequantize":
        return WeightKinds()
    if flag.name in stored.flags and flag.name not in MADE:
        return of_checkpoint
    fits = flag.name in stored.flags or of_checkpoint.kind is not None
    made = MADE.get(flag.name)
    is_other = made is None or any(kind.storage != made.all[0].storage for kind in of_checkpoint.all)
    if made is None or is_other or not fits or flag.modules:
        raise ConfigError(
            f"--quantization {quantization}: the checkpoint is quantized already, in the format {stored.title} "
            "(quantization_config in config.json); leave the flag out, or give a checkpoint that is not quantized"
        )
    return of_checkpoint if made.all[0].activation_bits == 16 else _with_8_bit_rows(of_checkpoint)


def _with_8_bit_rows(kinds: WeightKinds) -> WeightKinds:
    """Return the kinds with activations quantized to 8 bits.

    Raises:
        ConfigError: a kind of whole numbers has groups: no product takes 8 bits on both sides with groups of these.
    """

    def changed(kind: WeightKind) -> WeightKind:
        if kind.group is not None and kind.storage != "float8_e4m3fn":
            raise ConfigError(
                f"--quantization w8a8_…: the checkpoint has {kind.name}; activations of int8 need a scale per channel: "
                "leave the flag out"
            )
        return dataclasses.replace(kind, activation_bits=8)

    others = tuple((name, changed(kind)) for name, kind in kinds.others)
    return WeightKinds(kinds.kind and changed(kinds.kind), kinds.dense, others)
