"""Ministral: Mistral with windows on some layers. Ministral 3: no windows, and queries grow with their position."""

import dataclasses
from collections.abc import Iterable

from palladio.model.base.config_keys import Keys
from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.families.mistral import MISTRAL
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QueryGrowth


def _describe_ministral(hf: HfConfig) -> DecoderSpec:
    has_window = hf.optional_count("sliding_window") is not None
    return _describe(hf, map(hf.window, hf.alternating_types(lambda _: not has_window)), None)


def _describe_ministral3(hf: HfConfig) -> DecoderSpec:
    return _describe(hf, hf.windows_everywhere(), query_growth(hf))


def _describe(hf: HfConfig, windows: Iterable[int | None], growth: QueryGrowth | None) -> DecoderSpec:
    norm, rope, mlp = hf.rms_norm(), hf.rope(), DenseSpec(activation=hf.activation())
    attention = (AttentionSpec(rope=rope, scale=hf.scale, window=window, query_growth=growth) for window in windows)
    layers = tuple(LayerSpec(attention=each, mlp=mlp, norm=norm) for each in attention)
    return DecoderSpec(layers=layers, norm=norm)


def query_growth(hf: HfConfig) -> QueryGrowth | None:
    """Read the growth of queries; None: there is none."""
    found = hf.values.get("rope_parameters") or {}
    if not isinstance(found, dict) or found.get("llama_4_scaling_beta") is None:
        return None  # what is no object is refused with the rotary embedding
    if hf.values.get("rope_scaling"):
        raise ConfigError("rope_scaling and rope_parameters.llama_4_scaling_beta are not supported together")
    keys = Keys(found, "rope_parameters.")
    return QueryGrowth(rate=keys.number("llama_4_scaling_beta"), length=keys.count("original_max_position_embeddings"))


_NO_WINDOWS = {**MISTRAL.defaults, "sliding_window": None}
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

FAMILIES = {
    "MinistralForCausalLM": dataclasses.replace(MISTRAL, describe=_describe_ministral),
    "Ministral3ForCausalLM": Family(
        describe=_describe_ministral3,
        weights=MISTRAL.weights,
        defaults={
            **_NO_WINDOWS,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262144,
            "rope_parameters": _ROPE,
        },
    ),
}
