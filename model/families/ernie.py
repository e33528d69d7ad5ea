"""ERNIE 4.5, dense and mixtures: Llama whose rotary embedding turns interleaved pairs, without biases or with all."""

from collections.abc import Mapping
from typing import Any, Literal

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, MLP, MOE_EXPERTS, PRE_NORMS, TABLES
from palladio.model.families import llama
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, RouterSpec, SparseSpec

_KEYS = ExpertKeys(
    num_experts="moe_num_experts",
    other_name="num_experts",
    other_name_wins=False,
    intermediate_size="moe_intermediate_size",
    num_shared="moe_num_shared_experts",
)


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"num_experts_per_tok": config["moe_k"]} if "moe_k" in config else {}), **config}


def _layer(hf: HfConfig) -> LayerSpec:
    hf.no_windows()
    has_bias, rope = hf.flag("use_bias", default=False), hf.rope(is_interleaved=True)
    attention = AttentionSpec(rope=rope, scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias)
    return LayerSpec(attention=attention, mlp=DenseSpec(activation=hf.activation(), bias=has_bias), norm=hf.rms_norm())


def _describe(hf: HfConfig) -> DecoderSpec:
    layer = _layer(hf)
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm)


def _describe_moe(hf: HfConfig) -> DecoderSpec:
    hf.require("use_bias", False, default=False)
    dense, experts = _layer(hf), ExpertsConfig.from_hf(hf, _KEYS)
    router = RouterSpec(renormalize=True, bias="choice")
    shared: Literal["plain"] | None = None if experts.shared_intermediate_size is None else "plain"
    mlp = SparseSpec(router=router, activation=hf.activation(), shared_expert=shared)
    sparse = LayerSpec(attention=dense.attention, mlp=mlp, norm=dense.norm)
    first = hf.optional_count("moe_layer_start_index", least=0) or 0
    is_open = hf.values.get("moe_layer_end_index") in (None, -1)
    stop = hf.num_layers if is_open else (hf.optional_count("moe_layer_end_index", least=0) or 0) + 1
    period = hf.count("moe_layer_interval")
    are_sparse = tuple(first <= layer < stop and (layer + 1) % period == 0 for layer in range(hf.num_layers))
    layers = tuple(sparse if is_sparse else dense for is_sparse in are_sparse)
    return DecoderSpec(layers=layers, norm=dense.norm, experts=experts if any(are_sparse) else None)


_BIAS = layer_rules("mlp.moe_statics.", "mlp.", ("e_score_correction_bias", "router_bias", "row"))
_EXPERTS = tuple(rule for rule in MOE_EXPERTS if rule.param != _BIAS[0].param)
_TOKENS = {"tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5}
_EXPERT_SIZES = {"moe_intermediate_size": 1536, "moe_num_experts": 64, "num_experts_per_tok": 6}
_PLACES = {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1}

FAMILIES = {
    "Ernie4_5ForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={**_SIZES, **_TOKENS, "num_key_value_heads": 2, "head_dim": 128},
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        describe=_describe_moe,
        weights=(*TABLES, *ATTENTION, *MLP, *PRE_NORMS, *_EXPERTS, *_BIAS),
        defaults={**_SIZES, **_TOKENS, **_EXPERT_SIZES, **_PLACES, "num_key_value_heads": 4},
        ignored=(r"model\.mtp_.*",),  # layers that predict further tokens
        usual_keys=_usual_keys,
    ),
}
