"""How a checkpoint stores its weights, by config.json and by --quantization, and how they are kept on the device."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self, get_args

from palladio.model.config_keys import Keys, shown
from palladio.model.errors import ConfigError
from palladio.model.weight_rules import WeightRule
from palladio.model.weights.kinds import WeightKind, WeightKinds

Quantization = Literal["fp8", "int8", "dequantize"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
"""Values of --quantization. fp8: of a checkpoint that is stored so. int8: made while any other loads. dequantize: a
quantized checkpoint becomes dense."""

MADE: Mapping[str, WeightKind] = {
    "int8": WeightKind("int8"),
}
"""Kinds that are made of plain weights while they load, by the value of the flag."""

_MAX_BLOCK = 1 << 16  # of a quantized matrix, in one direction
_MAX_NAMES = 10_000  # of modules that are not quantized
_NO_MATRIX = ("vector", "transposed")  # transforms of norms, biases, routers
_NO_MATRIX_ENDS = ("_bias", "_scale", "_scales")
_TABLES = ("embedding.table", "lm_head.table")


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Weights stored as float8 e4m3 with scales.

    Attributes:
        block_size: rows and columns (as stored: out, in) that share a scale; None: one scale a tensor or a row.
        ignored: modules that are stored plainly: those whose names begin or end with one of these.
    """

    block_size: tuple[int, int] | None
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self | None:
        """What config.json says; None: nothing.

        Raises:
            ConfigError: it says something unsupported.
        """
        found = config.get("quantization_config")
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise ConfigError(f"quantization_config must be an object, found {shown(found)}")
        if found.get("quant_method") != "fp8":
            raise ConfigError(
                f"quantization_config.quant_method: {shown(found.get('quant_method'))} is not supported; only fp8"
            )
        keys = Keys(found, "quantization_config.")
        keys.require("fmt", "e4m3", default="e4m3")
        keys.require("activation_scheme", "dynamic", default="dynamic")
        ignored = _names(found, "modules_to_not_convert") + _names(found, "ignored_layers")
        return cls(_block_size(found), ignored)

    @property
    def kind(self) -> WeightKind:
        """Of the weights that are stored so."""
        return WeightKind("float8_e4m3fn", None if self.block_size is None else self.block_size[1])

    def ignores(self, module: str) -> bool:
        """Args: module: name as in the checkpoint."""
        return any(module.startswith(name) or module.endswith(name) for name in self.ignored)

    def kinds(self, rules: Iterable[WeightRule], num_layers: int) -> WeightKinds:
        """Of the weights, as far as config.json tells. Tables are quantized by no one."""
        dense = dense_weights(rules, num_layers, lambda tensor: self.ignores(tensor.removesuffix(".weight")))
        return WeightKinds(self.kind, tuple(sorted({*dense, *_TABLES})))


def dense_weights(
    rules: Iterable[WeightRule], num_layers: int, is_plain: Callable[[str], bool | None], num_experts: int = 1
) -> tuple[str, ...]:
    """Names of the weights of which a tensor is stored plainly, as WeightKinds has them.

    Args:
        is_plain: of a tensor's name; None: there is no such tensor.
        num_experts: of each layer, where tensors are numbered by them.
    """
    found: dict[str, dict[int, bool]] = {}  # weight with {layer} → layer → plain
    for rule in rules:
        if rule.transform in _NO_MATRIX or rule.transform.endswith(_NO_MATRIX_ENDS):
            continue
        experts = range(num_experts if "{expert}" in rule.name else 1)
        for layer in range(num_layers if "{layer}" in rule.name else 1):
            told = [is_plain(rule.name.format(layer=layer, expert=expert)) for expert in experts]
            known = [plain for plain in told if plain is not None]
            if known:
                layers = found.setdefault(rule.param, {})
                layers[layer] = layers.get(layer, False) or any(known)
    dense: set[str] = set()
    for weight, layers in found.items():
        if all(layers.values()):
            dense.add(weight)
        else:
            dense |= {weight.format(layer=layer) for layer, plain in layers.items() if plain}
    return tuple(sorted(dense))


def weight_kinds(
    quantization: str | None, stored: QuantizationConfig | None, of_checkpoint: WeightKinds
) -> WeightKinds:
    """What --quantization makes of a checkpoint's weights.

    Args:
        quantization: the flag; None: they are kept as they are stored.
        of_checkpoint: as they are stored.

    Raises:
        ConfigError: the flag does not fit the checkpoint.
    """
    if quantization == "fp8" and stored is None:
        raise ConfigError(
            "--quantization fp8: the checkpoint is not quantized (config.json has no quantization_config), and the "
            "server quantizes to int8 only; use --quantization int8, leave the flag out, or give an FP8 checkpoint"
        )
    if quantization == "dequantize" and stored is None:
        raise ConfigError("--quantization dequantize: the checkpoint is not quantized; leave the flag out")
    made = MADE.get(quantization or "")
    if made is not None and stored is not None:
        raise ConfigError(
            f"--quantization {quantization}: the checkpoint is quantized to FP8 already (quantization_config in "
            "config.json); leave the flag out, or give a checkpoint that is not quantized"
        )
    if made is not None:
        return WeightKinds(made)
    return WeightKinds() if quantization == "dequantize" else of_checkpoint


def _block_size(found: Mapping[str, Any]) -> tuple[int, int] | None:
    block = found.get("weight_block_size")
    if block is None:
        return None
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and 0 < n <= _MAX_BLOCK for n in block)):
        raise ConfigError(
            f"quantization_config.weight_block_size must be two numbers in 1 … {_MAX_BLOCK}, found {shown(block)}"
        )
    return block[0], block[1]


def _names(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = found.get(key)
    if names is None:
        return ()
    is_list = isinstance(names, list) and len(names) <= _MAX_NAMES
    if not is_list or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"quantization_config.{key} must be a list of module names, found {shown(names)}")
    return tuple(names)
