"""DeepSeek-V2, V3, V3.1 and R1, and Kimi-K2, which is a V3: latent attention, and a mixture of experts."""

import dataclasses
from collections.abc import Callable

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.router_keys import sigmoid_router, softmax_router
from palladio.model.config.weight_tables import LATENT_ATTENTION, MLP, MOE_EXPERTS, PRE_NORMS, TABLES
from palladio.model.spec.experts_config import MOE_KEYS, ExpertKeys, ExpertsConfig, first_dense_layers
from palladio.model.spec.latent_config import LatentConfig
from palladio.model.spec.layer_spec import DecoderSpec, DenseSpec, LatentSpec, LayerSpec, RouterSpec, SparseSpec
from palladio.model.spec.norm_spec import NormSpec

_Router = Callable[[HfConfig, ExpertsConfig], RouterSpec]
_Layers = Callable[[HfConfig, int], tuple[bool, ...]]


def describe_latent(hf: HfConfig, keys: ExpertKeys, router: _Router, layers: _Layers) -> DecoderSpec:
    """Describe a decoder with latent attention and a mixture of experts.

    Args:
        router, layers: read the router, and for each of a number of layers whether it has experts.
    """
    norm, activation, rope = hf.rms_norm(), hf.activation(), hf.rope()
    latent, experts = LatentConfig.from_hf(hf, hf.head_size), ExpertsConfig.from_hf(hf, keys)
    attention = LatentSpec(
        rope=rope,
        scale=latent.query_size**-0.5 * rope.score_factor,
        norm=NormSpec(eps=1e-6),  # whatever rms_norm_eps says
        bias=hf.flag("attention_bias", default=False),
    )
    has_shared, are_sparse = experts.shared_intermediate_size is not None, layers(hf, hf.num_layers)
    sparse = SparseSpec(
        router=router(hf, experts), activation=activation, shared_expert="plain" if has_shared else None
    )
    dense = DenseSpec(activation=activation)
    return DecoderSpec(
        layers=tuple(LayerSpec(attention=attention, mlp=sparse if one else dense, norm=norm) for one in are_sparse),
        norm=norm,
        experts=experts if any(are_sparse) else None,
        latent=latent,
    )


_SIZES = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 1536}
_EXPERTS = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1}
_GROUPS = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3}
_TOKENS = {"max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1}

DEEPSEEK_V3 = Family(
    describe=lambda hf: describe_latent(hf, MOE_KEYS, sigmoid_router, first_dense_layers),
    weights=(*TABLES, *LATENT_ATTENTION, *MLP, *PRE_NORMS, *MOE_EXPERTS),
    defaults={**_SIZES, **_EXPERTS, **_GROUPS, **_TOKENS, "num_nextn_predict_layers": 1},
)

_V2_KEYS = dataclasses.replace(MOE_KEYS, other_name="num_experts")
_V2_EXPERTS = {"n_routed_experts": 64, "moe_intermediate_size": 1407, "n_shared_experts": 2}
_V2_TOKENS = {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2}


def _describe_v2(hf: HfConfig) -> DecoderSpec:
    hf.require("mlp_bias", False, default=False)  # of experts that every token goes to, as well
    return describe_latent(hf, _V2_KEYS, softmax_router, first_dense_layers)


DEEPSEEK_V2 = dataclasses.replace(
    DEEPSEEK_V3,
    describe=_describe_v2,
    defaults={**_SIZES, **_V2_EXPERTS, **_V2_TOKENS, "routed_scaling_factor": 1.0},
)

FAMILIES = {"DeepseekV2ForCausalLM": DEEPSEEK_V2, "DeepseekV3ForCausalLM": DEEPSEEK_V3}
