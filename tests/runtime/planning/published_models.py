"""Published models by the numbers of their config.json, and what a plan says of each on a slice that holds it:

python -m tests.runtime.planning.published_models
"""

import dataclasses
from typing import Any

from benchmarks.support import checkpoints
from palladio.model.config.config import ModelConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.planning.deployment import Deployment, Roofline
from palladio.runtime.planning.hardware import find_slice

COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
FP8_BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
LATENT = checkpoints.DEEPSEEK_V3 | FP8_BLOCKS
MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}, "max_position_embeddings": 131072}
MINIMAX_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "float8_e4m3fn",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
GLM = COMMON | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "vocab_size": 151552,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 131072,
}
LLAMA_LIKE = COMMON | {"hidden_act": "silu", "max_position_embeddings": 32768, "rope_theta": 1e6}


def relative(architecture: str, model_type: str, vocab: int, *sizes: int) -> dict[str, Any]:
    """Make the config.json of a relative.

    Args:
        sizes: hidden and intermediate, layers, heads, key-value heads.
    """
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    found = dict(zip(names, sizes, strict=True)) | {"architectures": [architecture], "model_type": model_type}
    return LLAMA_LIKE | found | {"vocab_size": vocab, "head_dim": 128}


DELTA: dict[str, Any] = {  # every fourth layer has attention, with heads of 256
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        billions: billions of parameters, as published; without layers that predict further tokens.
    """

    config: dict[str, Any]
    billions: float
    place: str
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)


def over(devices: int, parts: int = 1) -> ParallelConfig:
    return ParallelConfig(tp_size=devices, ep_size=parts)


MODELS = {
    "DeepSeek-V3": Published(LATENT, 671, "v6e-32", over(32, 32)),
    "Kimi-K2": Published(
        LATENT
        | {
            "vocab_size": 163840,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "first_k_dense_replace": 1,
        }
        | {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "max_position_embeddings": 131072},
        1026,
        "tpu7x-32",
        over(32, 32),
    ),
    "DeepSeek-V2": Published(
        LATENT
        | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 102400}
        | {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60}
        | {"n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "topk_group": 3}
        | {"first_k_dense_replace": 1, "norm_topk_prob": False, "routed_scaling_factor": 16.0}
        | {"scoring_func": "softmax", "topk_method": "group_limited_greedy", "quantization_config": None},
        236,
        "tpu7x-16",
        over(16, 16),
    ),
    "DeepSeek-V3.1": Published(
        LATENT | {"quantization_config": FP8_BLOCKS["quantization_config"] | {"scale_fmt": "ue8m0", "fmt": "e4m3"}},
        671,
        "tpu7x-16",
        over(16, 16),
    ),
    "DeepSeek-V2-Lite": Published(checkpoints.DEEPSEEK_V2_LITE, 15.7, "v6e-4", over(4, 4)),
    "GLM-4.7-Flash": Published(
        COMMON
        | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "vocab_size": 154880}
        | {"hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47}
        | {"num_attention_heads": 20, "num_key_value_heads": 20, "n_routed_experts": 64, "num_experts_per_tok": 4}
        | {"n_shared_experts": 1, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192}
        | {"qk_rope_head_dim": 64, "v_head_dim": 256, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8}
        | {"norm_topk_prob": True, "max_position_embeddings": 202752},
        29.9,
        "v6e-4",
        over(4, 4),
    ),
    "gpt-oss-120b": Published(checkpoints.GPT_OSS_120B | MXFP4, 117, "v6e-8", over(8, 8)),
    "gpt-oss-20b": Published(checkpoints.GPT_OSS_20B | MXFP4, 20.9, "v6e-1"),
    "GLM-4.5": Published(GLM, 353, "tpu7x-16", over(16, 16)),
    "GLM-4.6": Published(GLM | {"max_position_embeddings": 202752}, 353, "tpu7x-16", over(16, 16)),
    "GLM-4.5-Air": Published(
        GLM
        | {"hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46}
        | {"n_routed_experts": 128, "first_k_dense_replace": 1, "use_qk_norm": False},
        107,
        "v6e-16",
        over(16, 16),
    ),
    "MiniMax-M2": Published(
        COMMON
        | {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "vocab_size": 200064}
        | {"hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48}
        | {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rotary_dim": 64,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
        }
        | {"num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid", "use_routing_bias": True}
        | {"max_position_embeddings": 196608, "rope_theta": 5e6, "quantization_config": MINIMAX_FP8},
        229,
        "tpu7x-8",
        over(8, 8),
    ),
    "Qwen3-30B-A3B": Published(checkpoints.QWEN3_30B, 30.5, "v6e-4", over(4, 4)),
    "Qwen3-235B-A22B": Published(
        checkpoints.QWEN3_30B
        | {"hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94}
        | {"num_attention_heads": 64},
        235,
        "tpu7x-16",
        over(16, 16),
    ),
    "Qwen3-Next-80B-A3B": Published(checkpoints.QWEN3_NEXT_80B, 79.7, "v6e-16", over(16, 16)),
    "Qwen3.5-9B": Published(
        relative("Qwen3_5ForCausalLM", "qwen3_5_text", 248320, 4096, 12288, 32, 16, 4) | DELTA, 8.95, "v6e-4", over(4)
    ),
    "Qwen3.5-35B-A3B": Published(
        relative("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 248320, 2048, 5632, 40, 16, 2)
        | DELTA
        | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512},
        34.7,
        "v6e-8",
        over(8, 8),
    ),
    "Granite-3.0-3B-A800M": Published(
        COMMON
        | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "vocab_size": 49155}
        | {"hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32, "num_attention_heads": 24}
        | {"num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8, "tie_word_embeddings": True}
        | {"max_position_embeddings": 4096, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0}
        | {"logits_scaling": 6.0, "residual_multiplier": 0.22},
        3.3,
        "v6e-1",
    ),
    "Mistral-Small-3.2-24B": Published(
        relative("Mistral3ForConditionalGeneration", "mistral", 131072, 5120, 32768, 40, 32, 8),
        23.6,
        "v6e-4",
        over(4),
    ),
    "Ministral-8B": Published(
        relative("MinistralForCausalLM", "ministral", 131072, 4096, 12288, 36, 32, 8) | {"sliding_window": 32768},
        8.02,
        "v6e-1",
    ),
    "Ministral-3-8B": Published(
        relative("Ministral3ForCausalLM", "ministral3", 131072, 4096, 14336, 34, 32, 8), 8.49, "v6e-1"
    ),
    "Qwen2.5-VL-7B": Published(
        relative("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", 152064, 3584, 18944, 28, 28, 4), 7.62, "v6e-1"
    ),
    "Gemma-3-27B": Published(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "model_type": "gemma3_text",
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "num_hidden_layers": 62,
                "head_dim": 128,
                "query_pre_attn_scalar": 168,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
        27.0,
        "v6e-4",
        over(4),
    ),
    "Nemotron-Mini-4B": Published(
        relative("NemotronForCausalLM", "nemotron", 256000, 3072, 9216, 32, 24, 8) | {"hidden_act": "relu2"},
        4.19,
        "v6e-1",
    ),
    "InternLM2.5-7B": Published(
        relative("InternLM2ForCausalLM", "internlm2", 92544, 4096, 14336, 32, 32, 8) | {"bias": False},
        7.7,
        "v6e-1",
    ),
    "InternLM3-8B": Published(
        relative("InternLM3ForCausalLM", "internlm3", 128512, 4096, 10240, 48, 32, 2), 8.8, "v6e-1"
    ),
}


def deploy(model: Published) -> tuple[Deployment, EngineConfig]:
    source = ModelSource(model_path="published", context_length=4096)
    config = EngineConfig(source=source, parallel=model.parallel)
    return Deployment.of(config, ModelConfig.from_hf(model.config), find_slice(model.place)), config


def main() -> None:
    print("| model | parameters | active | slice | tp, ep | weights a device | KV tokens | 1 request | 64 × 2,048 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        one, config = deploy(model)
        plan, roofline = one.plan(config, one.estimated_workspace()), Roofline(one)
        sizes = f"{one.num_parameters / 1e9:,.1f} B | {one.num_active_parameters / 1e9:,.1f} B"
        where = f"{model.place} | {model.parallel.tp_size}, {model.parallel.ep_size}"
        rates = f"{roofline.decode_rate(1, 2048):,.0f} t/s | {roofline.decode_rate(64, 2048):,.0f} t/s"
        print(f"| {name} | {sizes} | {where} | {one.weight_bytes / 2**30:.2f} GiB | {plan.num_tokens:,} | {rates} |")


if __name__ == "__main__":
    main()
