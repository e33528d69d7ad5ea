"""gpt-oss: attention with sinks, every other layer with a window, and a mixture of experts with biases."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.config.weight_tables import ATTENTION, PAIRED_EXPERTS, PRE_NORMS, SINKS, TABLES
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig
from palladio.model.spec.layer_spec import AttentionSpec, ClampedGate, DecoderSpec, LayerSpec, RouterSpec, SparseSpec

_KEYS = ExpertKeys(
    num_experts="num_local_experts",
    other_name="num_experts",
    other_name_wins=False,
    intermediate_size="intermediate_size",
)


def _describe(hf: HfConfig) -> DecoderSpec:
    norm, has_bias, rope = hf.rms_norm("float32"), hf.flag("attention_bias", default=True), hf.rope()
    mlp = SparseSpec(
        # Shares among the chosen: those of all experts, divided by their sum.
        router=RouterSpec(renormalize=True, bias="logits"),
        activation=ClampedGate(sharpness=hf.number("swiglu_alpha"), limit=hf.number("swiglu_limit")),
        bias=True,
    )
    types = hf.alternating_types(lambda layer: layer % 2 == 1)
    attention = {
        kind: AttentionSpec(
            rope=rope,
            scale=hf.scale,
            window=hf.window(kind),
            has_sinks=True,
            qkv_bias=has_bias,
            output_bias=has_bias,
        )
        for kind in (FULL, SLIDING)
        if kind in types
    }
    layers = tuple(LayerSpec(attention=attention[kind], mlp=mlp, norm=norm) for kind in types)
    return DecoderSpec(layers=layers, norm=norm, experts=ExpertsConfig.from_hf(hf, _KEYS))


FAMILIES = {
    "GptOssForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *SINKS, *PRE_NORMS, *PAIRED_EXPERTS),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
    )
}
