"""Mistral 4: DeepSeek-V3's latent attention and experts, a softmax router, and queries grow with their position."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from palladio.model.config.hf_config import HfConfig
from palladio.model.config.router_keys import plain_router
from palladio.model.families.deepseek import DEEPSEEK_V3, describe_latent
from palladio.model.families.ministral import query_growth
from palladio.model.spec.experts_config import MOE_KEYS, first_dense_layers
from palladio.model.spec.layer_spec import DecoderSpec


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json without the rotated share of a whole query: the rotary embedding has that part alone."""
    found = config.get("rope_parameters")
    if not isinstance(found, Mapping):
        return dict(config)
    return {**config, "rope_parameters": {k: v for k, v in found.items() if k != "partial_rotary_factor"}}


def _describe(hf: HfConfig) -> DecoderSpec:
    plain, growth = describe_latent(hf, MOE_KEYS, plain_router, first_dense_layers), query_growth(hf)
    layers = tuple(layer.with_attention(query_growth=growth) for layer in plain.layers)
    return dataclasses.replace(plain, layers=layers)


_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_SIZES = {"kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
_EXPERTS = {"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2048, "n_shared_experts": 1}

FAMILIES = {
    "Mistral4ForCausalLM": dataclasses.replace(
        DEEPSEEK_V3,
        describe=_describe,
        usual_keys=_usual_keys,
        defaults={
            **_SIZES,
            **_EXPERTS,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "max_position_embeddings": 1048576,
            "rope_parameters": _ROPE,
            "pad_token_id": 11,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
}
