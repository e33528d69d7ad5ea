"""--json-model-override-args: values that replace those of config.json, under any of a value's names."""

import json
from collections.abc import Mapping
from typing import Any

from palladio.model.base.errors import ConfigError

_NAMES_OF_ONE = (
    ("dtype", "torch_dtype"),
    ("rope_parameters", "rope_scaling"),
    ("num_experts", "num_local_experts"),
    ("rope_type", "type"),
)
_IN_ROPE = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")  # or outside it


def overrides_of(text: str) -> dict[str, Any]:
    """Parse the JSON object of --json-model-override-args.

    Raises:
        ConfigError: the text is no JSON object.
    """
    try:
        overrides = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--json-model-override-args is not valid JSON: {error}") from error
    if not isinstance(overrides, dict):
        raise ConfigError("--json-model-override-args must be a JSON object")
    return overrides


def override(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `overrides` over config.json; nested objects merge key by key.

    Drop keys of config.json that give an overridden value under another name: they might win, and an override without
    effect would go unnoticed. rope_parameters stays if a rope_scaling is given, which wins.
    """
    base = {key: value for key, value in config.items() if key not in _replaced(config, overrides)}
    for name in ("rope_parameters", "rope_scaling"):
        rope, new = base.get(name), overrides.get(name)
        if not isinstance(rope, Mapping):
            continue
        left_out = {key for key in _IN_ROPE if key in overrides}
        if isinstance(new, Mapping):
            left_out |= _other_names(new)
            if _kind(new, _kind(rope, None)) != _kind(rope, None):  # another scaling: what this one says is not for it
                left_out |= rope.keys() - {"rope_theta", "partial_rotary_factor"}
        base[name] = {key: value for key, value in rope.items() if key not in left_out}
    return _merge(base, overrides)


def _replaced(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
    """Return the keys of config.json whose value is given under another name, or in another place."""
    replaced = _other_names(overrides) - overrides.keys()
    if overrides.get("rope_scaling"):
        replaced.discard("rope_parameters")
    for name in ("rope_parameters", "rope_scaling"):
        rope = overrides.get(name)
        if isinstance(rope, Mapping):
            replaced |= {key for key in _IN_ROPE if key in rope and key not in overrides}
    return replaced


def _other_names(given: Mapping[str, Any]) -> set[str]:
    return {other for names in _NAMES_OF_ONE for name in names if name in given for other in names if other != name}


def _kind(rope: Mapping[str, Any], default: object) -> object:
    return rope.get("rope_type", rope.get("type", default))


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
