"""GLM-4.7-Flash: DeepSeek-V3 with other sizes, and layers with experts that config.json names one by one."""

import dataclasses

from palladio.model.config.router_keys import sigmoid_router
from palladio.model.families.deepseek import DEEPSEEK_V3, describe_latent
from palladio.model.spec.experts_config import MOE_KEYS, typed_layers

FAMILIES = {
    "Glm4MoeLiteForCausalLM": dataclasses.replace(
        DEEPSEEK_V3,
        describe=lambda hf: describe_latent(hf, MOE_KEYS, sigmoid_router, typed_layers),
        defaults={
            **DEEPSEEK_V3.defaults,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "n_routed_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
        },
    )
}
