"""Qwen3-Next: three layers with a gated delta rule, then one with gated attention."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, LINEAR, HfConfig
from palladio.model.config.weight_tables import (
    EXPERTS,
    FUSED_DELTA_NET,
    GATED_ATTENTION,
    HEAD_NORMS,
    MLP,
    PRE_NORMS,
    ROTARY_BUFFERS,
    TABLES,
)
from palladio.model.spec.delta_config import DeltaConfig
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig, sparse_layers
from palladio.model.spec.layer_spec import (
    AttentionSpec,
    DecoderSpec,
    DeltaSpec,
    DenseSpec,
    LayerSpec,
    QKNormSpec,
    RouterSpec,
    SparseSpec,
)
from palladio.model.spec.norm_spec import NormSpec

_KEYS = ExpertKeys(
    num_experts="num_experts",
    other_name="num_local_experts",
    other_name_wins=False,
    intermediate_size="moe_intermediate_size",
    shared_intermediate_size="shared_expert_intermediate_size",
)


def describe_hybrid(hf: HfConfig, *, are_sparse: tuple[bool, ...]) -> DecoderSpec:
    """Describe a decoder with gated delta rules and gated attention; `are_sparse`: whether each layer has experts."""
    hf.require("attention_bias", False, default=False)  # nor another activation, which delta rules would have, too
    norm, activation = hf.rms_norm("plus_one"), hf.activation(only="silu")
    mixers: dict[str, AttentionSpec | DeltaSpec] = {
        FULL: AttentionSpec(
            rope=hf.rope(default_fraction=0.25), scale=hf.scale, qk_norm=QKNormSpec(norm=norm), has_gate=True
        ),
        LINEAR: DeltaSpec(norm=NormSpec(eps=norm.eps)),
    }
    router, dense = RouterSpec(renormalize=hf.flag("norm_topk_prob", default=True)), DenseSpec(activation=activation)
    sparse = SparseSpec(router=router, activation=activation, shared_expert="gated")
    layers = (
        LayerSpec(attention=mixers[kind], mlp=sparse if is_sparse else dense, norm=norm)
        for kind, is_sparse in zip(hf.hybrid_types(), are_sparse, strict=True)
    )
    experts = ExpertsConfig.from_hf(hf, _KEYS) if any(are_sparse) else None
    return DecoderSpec(layers=tuple(layers), norm=norm, experts=experts, delta=DeltaConfig.from_hf(hf))


_DELTA_HEADS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
_DELTA = {**_DELTA_HEADS, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
DEFAULTS = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    **_DELTA,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
HYBRID_WEIGHTS = (*TABLES, *GATED_ATTENTION, *HEAD_NORMS, *MLP, *EXPERTS, *PRE_NORMS)

QWEN3_NEXT = Family(
    describe=lambda hf: describe_hybrid(hf, are_sparse=sparse_layers(hf, hf.num_layers)),
    weights=(*HYBRID_WEIGHTS, *FUSED_DELTA_NET),
    defaults=DEFAULTS,
    ignored=(*ROTARY_BUFFERS, r"mtp\..*"),  # layers that predict tokens further ahead
)

FAMILIES = {"Qwen3NextForCausalLM": QWEN3_NEXT}
