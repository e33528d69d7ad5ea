"""GLM-4.5 to 4.7, and 4.5V: half of each head is rotated, and above the first layers there is DeepSeek-V3's mixture."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.router_keys import sigmoid_router
from palladio.model.config.weight_tables import DECODER_WEIGHTS, MOE_EXPERTS
from palladio.model.spec.experts_config import MOE_KEYS, ExpertsConfig, first_dense_layers
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec, SparseSpec


def _describe(hf: HfConfig, *, takes_norms: bool = True) -> DecoderSpec:
    norm, activation = hf.rms_norm(), hf.activation()
    experts = ExpertsConfig.from_hf(hf, MOE_KEYS)
    sparse = SparseSpec(
        router=sigmoid_router(hf, experts),
        activation=activation,
        shared_expert=None if experts.shared_intermediate_size is None else "plain",
    )
    dense = DenseSpec(activation=activation)
    attention = AttentionSpec(
        rope=hf.rope(default_fraction=0.5),
        scale=hf.scale,
        qk_norm=QKNormSpec(norm=norm) if takes_norms and hf.flag("use_qk_norm", default=False) else None,
        qkv_bias=hf.flag("attention_bias", default=False),
    )
    are_sparse = first_dense_layers(hf, hf.num_layers)
    layers = (LayerSpec(attention=attention, mlp=sparse if is_sparse else dense, norm=norm) for is_sparse in are_sparse)
    return DecoderSpec(layers=tuple(layers), norm=norm, experts=experts if any(are_sparse) else None)


_DEFAULTS = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
}
_VL_DEFAULTS = {**_DEFAULTS, "max_position_embeddings": 65536, "attention_bias": True}

GLM4_MOE = Family(
    describe=_describe,
    weights=(*DECODER_WEIGHTS, *MOE_EXPERTS),
    defaults={**_DEFAULTS, "num_nextn_predict_layers": 1},
)

FAMILIES = {
    "Glm4MoeForCausalLM": GLM4_MOE,
    "Glm4vMoeForConditionalGeneration": dataclasses.replace(
        GLM4_MOE, describe=lambda hf: _describe(hf, takes_norms=False), defaults=_VL_DEFAULTS
    ),
}
