"""Qwen3-Next and the text models of Qwen3.5: three layers with a gated delta rule, then one with gated attention."""

from palladio.model.delta_config import DeltaConfig
from palladio.model.experts_config import ExpertKeys, ExpertsConfig, sparse_layers
from palladio.model.family import Family
from palladio.model.hf_config import FULL, LINEAR, HfConfig
from palladio.model.layer_spec import (
    AttentionSpec,
    DecoderSpec,
    DeltaSpec,
    DenseSpec,
    LayerSpec,
    NormSpec,
    QKNormSpec,
    RouterSpec,
    SparseSpec,
)
from palladio.model.weight_rules import (
    EXPERTS,
    FUSED_DELTA_NET,
    GATED_ATTENTION,
    HEAD_NORMS,
    MLP,
    PRE_NORMS,
    ROTARY_BUFFERS,
    TABLES,
)

_KEYS = ExpertKeys(
    num_experts="num_experts",
    other_name="num_local_experts",
    other_name_wins=False,
    intermediate_size="moe_intermediate_size",
    shared_intermediate_size="shared_expert_intermediate_size",
)


def _describe(hf: HfConfig, *, are_sparse: tuple[bool, ...]) -> DecoderSpec:
    hf.require("attention_bias", False, default=False)
    norm, activation = hf.rms_norm("plus_one"), hf.activation("hidden_act", "silu")
    mixers: dict[str, AttentionSpec | DeltaSpec] = {
        FULL: AttentionSpec(
            rope=hf.rope(default_fraction=0.25), scale=hf.scale, qk_norm=QKNormSpec(norm=norm), has_gate=True
        ),
        LINEAR: DeltaSpec(norm=NormSpec(eps=norm.eps)),
    }
    router = RouterSpec(renormalize=hf.flag("norm_topk_prob", default=True))
    sparse = SparseSpec(router=router, activation=activation, shared_expert="gated")
    dense = DenseSpec(activation=activation)
    layers = (
        LayerSpec(attention=mixers[kind], mlp=sparse if is_sparse else dense, norm=norm)
        for kind, is_sparse in zip(hf.hybrid_types(), are_sparse, strict=True)
    )
    experts = ExpertsConfig.from_hf(hf, _KEYS) if any(are_sparse) else None
    return DecoderSpec(layers=tuple(layers), norm=norm, experts=experts, delta=DeltaConfig.from_hf(hf))


_SIZES = {"num_attention_heads": 16, "head_dim": 256, "max_position_embeddings": 32768}
_DELTA = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
_HEADS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}
_EXPERTS = {"num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
_IGNORED = (*ROTARY_BUFFERS, r"mtp\..*")
_SHARED = (*TABLES, *GATED_ATTENTION, *HEAD_NORMS, *MLP, *EXPERTS, *PRE_NORMS)

QWEN3_NEXT = Family(
    describe=lambda hf: _describe(hf, are_sparse=sparse_layers(hf, hf.num_layers)),
    weights=(*_SHARED, *FUSED_DELTA_NET),
    defaults={**_SIZES, **_DELTA, **_HEADS, **_EXPERTS, "num_key_value_heads": 2, "num_experts": 512},
    ignored=_IGNORED,
)

FAMILIES = {"Qwen3NextForCausalLM": QWEN3_NEXT}
