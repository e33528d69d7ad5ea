"""The storage format and the kinds of a checkpoint's weights, as config.json describes them."""

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.weight_rules import WeightRule
from palladio.model.formats.awq import Awq
from palladio.model.formats.compressed_tensors import CompressedTensors
from palladio.model.formats.fp8 import Fp8
from palladio.model.formats.gguf import Gguf
from palladio.model.formats.gptq import Gptq
from palladio.model.formats.modelopt import ModelOptFp8
from palladio.model.formats.mxfp4 import Mxfp4
from palladio.model.formats.stored_format import StoredFormat, module_of
from palladio.model.weights.kinds import WeightKind, WeightKinds

FORMATS: Mapping[str, type[Fp8 | Awq | Gptq | CompressedTensors | ModelOptFp8 | Mxfp4 | Gguf]] = {
    "fp8": Fp8,
    "fbgemm_fp8": Fp8,
    "awq": Awq,
    "gptq": Gptq,
    "compressed-tensors": CompressedTensors,
    "modelopt": ModelOptFp8,
    "mxfp4": Mxfp4,
    "gguf": Gguf,
}
"""Formats by quantization_config.quant_method."""

QUANT_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files of ModelOpt, AutoGPTQ and AutoAWQ, from before they wrote quantization_config into config.json. Other tools use
these names, too: the file of transformers.js describes the quantization of its ONNX files."""

_NO_MATRIX = ("vector", "scalar", "row", "transposed", "sinks")  # transforms of norms, biases, routers, sinks
_NO_MATRIX_ENDS = ("_bias", "_scale", "_scales")
_MAX_LEVELS = 6  # of objects and lists in quantization_config: config_groups, a group, its weights, a block
TABLES = ("embedding.table", "lm_head.table")


def separate_quantization_config(files: Mapping[str, object]) -> dict[str, Any] | None:
    """Find the quantization_config of a checkpoint whose config.json has none; None: no file has it.

    Args:
        files: the files of QUANT_FILES that exist, as JSON.
    """
    for name in QUANT_FILES:
        found = files.get(name)
        if not isinstance(found, Mapping):
            continue
        if name == "hf_quant_config.json":
            own = found.get("quantization")
            if isinstance(own, Mapping):
                return {"quant_method": "modelopt", **own}
        elif (method := _method_of(found, name)) is not None:
            return {"quant_method": method, **found}
    return None


def _method_of(found: Mapping[str, Any], name: str) -> str | None:
    """Return the quant_method in a file of this name; None: it is no quantization_config."""
    if found.get("quant_method") in list(FORMATS):  # a list, for the value may be anything
        return str(found["quant_method"])
    if "w_bit" in found or "q_group_size" in found:
        return "awq"
    if "bits" in found and "group_size" in found:
        return "awq" if name == "quant_config.json" else "gptq"
    return None


def stored_format(config: Mapping[str, Any]) -> StoredFormat | None:
    """Read the storage format from config.json; None: it names none.

    Raises:
        ConfigError: the format is not supported.
    """
    found = config.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"quantization_config must be an object, found {shown(found)}")
    is_modelopt = "quant_algo" in found  # some of its files have no quant_method
    method = found.get("quant_method", "modelopt" if is_modelopt else None)
    if not isinstance(method, str) or method not in FORMATS:
        raise ConfigError(
            f"quantization_config.quant_method: {shown(method)} is not supported; supported: {', '.join(FORMATS)}. "
            "Give a checkpoint in one of these formats, or one that is not quantized"
        )
    return FORMATS[method].of(Keys(_with_whole_numbers(found), "quantization_config."))


def _with_whole_numbers(found: Any, levels: int = _MAX_LEVELS) -> Any:
    """Replace floats such as 128.0, which some tools write, with whole numbers in an object of config.json."""
    if isinstance(found, float) and found.is_integer():
        return int(found)
    if levels and isinstance(found, Mapping):
        return {key: _with_whole_numbers(value, levels - 1) for key, value in found.items()}
    if levels and isinstance(found, list):
        return [_with_whole_numbers(value, levels - 1) for value in found]
    return found


def kinds_by_config(stored: StoredFormat | None, rules: Iterable[WeightRule], num_layers: int) -> WeightKinds:
    """Return the kinds of a checkpoint's weights, as far as config.json describes them. Tables are never quantized.

    Args:
        stored: the storage format; None: the checkpoint is not quantized.
    """
    if stored is None:
        return WeightKinds()

    def kind(rule: WeightRule, name: str) -> tuple[WeightKind | None]:
        return (None if rule.param in TABLES else stored.kind(module_of(name)),)

    return kinds_of(rules, num_layers, kind)


def kinds_of(
    rules: Iterable[WeightRule],
    num_layers: int,
    kind: Callable[[WeightRule, str], tuple[WeightKind | None] | None],
    num_experts: int = 1,
) -> WeightKinds:
    """Return the kinds of a model's weights. A weight whose tensors differ in kind is dense.

    Args:
        kind: returns the kind of a tensor from its rule and its name; None: there is no such tensor.
        num_experts: experts of each layer, where tensors are numbered by them.
    """
    found: dict[str, dict[int, set[WeightKind | None]]] = {}  # weight with {layer} → layer → kinds of its tensors
    for rule in rules:
        if rule.transform in _NO_MATRIX or rule.transform.endswith(_NO_MATRIX_ENDS):
            continue
        experts = range(num_experts if "{expert}" in rule.name else 1)
        for layer in range(num_layers if "{layer}" in rule.name else 1):
            found_kinds = [kind(rule, rule.name.format(layer=layer, expert=expert)) for expert in experts]
            kinds = {each[0] for each in found_kinds if each is not None}
            if kinds:
                found.setdefault(rule.param, {}).setdefault(layer, set()).update(kinds)
    usual: dict[str, WeightKind | None] = {}  # by weight with {layer}
    single: dict[str, WeightKind | None] = {}  # by weight of one layer, where it is another one
    for weight, layers in found.items():
        of_layers = {layer: next(iter(kinds)) if len(kinds) == 1 else None for layer, kinds in layers.items()}
        usual[weight] = collections.Counter(of_layers.values()).most_common(1)[0][0]
        single |= {weight.format(layer=layer): kind for layer, kind in of_layers.items() if kind != usual[weight]}
    counts = collections.Counter(kind for kind in (*usual.values(), *single.values()) if kind is not None)
    if not counts:
        return WeightKinds()
    main = counts.most_common(1)[0][0]
    named = {name: kind for name, kind in usual.items() if kind != main} | single
    others = tuple((name, named[name]) for name in sorted(named))
    return WeightKinds(
        main,
        tuple(name for name, kind in others if kind is None),
        tuple((name, kind) for name, kind in others if kind is not None),
    )
