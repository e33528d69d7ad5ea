"""Qwen2-MoE, Qwen3-MoE, and those of Qwen3-VL and Qwen3-Omni: Qwen's attention, and a mixture of experts."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import DECODER_WEIGHTS, EXPERTS
from palladio.model.families.qwen import qwen2_attention, qwen3_attention
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig, sparse_layers
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, RouterSpec, SparseSpec

_QWEN2_KEYS = ExpertKeys(
    num_experts="num_experts",
    other_name="num_local_experts",
    other_name_wins=False,
    intermediate_size="moe_intermediate_size",
    shared_intermediate_size="shared_expert_intermediate_size",
)
_QWEN3_KEYS = ExpertKeys(
    num_experts="num_experts",
    other_name="num_local_experts",
    other_name_wins=True,
    intermediate_size="moe_intermediate_size",
)


def _describe_qwen2(hf: HfConfig) -> DecoderSpec:
    attention = dataclasses.replace(qwen2_attention(hf), qkv_bias=hf.flag("qkv_bias", default=True))
    return _describe(hf, attention, _QWEN2_KEYS)


def _describe_qwen3(hf: HfConfig) -> DecoderSpec:
    return _describe(hf, qwen3_attention(hf), _QWEN3_KEYS)


def _describe_vl(hf: HfConfig) -> DecoderSpec:
    """Describe Qwen3-VL's mixture, which always divides by the sum."""
    return _describe(hf, qwen3_attention(hf), _QWEN3_KEYS, renormalizes=True)


def _describe(hf: HfConfig, attention: AttentionSpec, keys: ExpertKeys, *, renormalizes: bool = False) -> DecoderSpec:
    hf.require("use_sliding_window", False, default=False)  # no published model has one; transformers' releases differ
    hf.no_windows()
    norm, activation = hf.rms_norm(), hf.activation()
    are_sparse = sparse_layers(hf, hf.num_layers)
    sparse = SparseSpec(
        router=RouterSpec(renormalize=renormalizes or hf.flag("norm_topk_prob", default=False)),
        activation=activation,
        shared_expert=None if keys.shared_intermediate_size is None else "gated",
    )
    dense = DenseSpec(activation=activation)
    layers = (LayerSpec(attention=attention, mlp=sparse if is_sparse else dense, norm=norm) for is_sparse in are_sparse)
    experts = ExpertsConfig.from_hf(hf, keys) if any(are_sparse) else None
    return DecoderSpec(layers=tuple(layers), norm=norm, experts=experts)


_WEIGHTS = (*DECODER_WEIGHTS, *EXPERTS)
_VL_WEIGHTS = tuple(  # experts of a layer are one tensor, their inputs first; transformers 5 writes them last
    dataclasses.replace(rule, inputs_first=rule.storage == "stacked", either_way=rule.storage == "stacked")
    for rule in _WEIGHTS
)
_QWEN3 = {"num_key_value_heads": 4, "max_position_embeddings": 32768}

FAMILIES = {
    "Qwen2MoeForCausalLM": Family(
        describe=_describe_qwen2,
        weights=_WEIGHTS,
        defaults={"num_key_value_heads": 16, "max_position_embeddings": 32768},
    ),
    "Qwen3MoeForCausalLM": Family(describe=_describe_qwen3, weights=_WEIGHTS, defaults=_QWEN3),
    "Qwen3OmniMoeForConditionalGeneration": Family(
        describe=_describe_qwen3, weights=_WEIGHTS, defaults={**_QWEN3, "rope_theta": 1e6, "norm_topk_prob": True}
    ),
    "Qwen3VLMoeForConditionalGeneration": Family(
        describe=_describe_vl,
        weights=_VL_WEIGHTS,
        defaults={"num_key_value_heads": 16, "max_position_embeddings": 128000, "rope_theta": 5e5},
    ),
}
