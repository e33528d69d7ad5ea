"""MiniMax-M2: half of each head is rotated, norms of all heads together, and DeepSeek-V3's way to choose experts."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, MIXTRAL_EXPERTS, PRE_NORMS, TABLES
from palladio.model.families.mistral import MIXTRAL_KEYS
from palladio.model.families.olmo import FLAT_NORMS
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, LayerSpec, QKNormSpec, RouterSpec, SparseSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    norm, rotated = hf.rms_norm(), hf.optional_count("rotary_dim")
    attention = AttentionSpec(
        rope=hf.rope(default_fraction=1.0 if rotated is None else rotated / hf.head_size),
        scale=hf.scale,
        qk_norm=QKNormSpec(norm=norm, form="all_heads"),
    )
    router = RouterSpec(renormalize=True, score="sigmoid", bias="choice")
    mlp = SparseSpec(router=router, activation=hf.activation())
    layer = LayerSpec(attention=attention, mlp=mlp, norm=norm)
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm, experts=ExpertsConfig.from_hf(hf, MIXTRAL_KEYS))


_BIAS = layer_rules(
    "",
    "mlp.",
    ("block_sparse_moe.e_score_correction_bias", "router_bias", "vector", "split"),
    ("mlp.e_score_correction_bias", "router_bias", "vector", "stacked"),
)

FAMILIES = {
    "MiniMaxM2ForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *FLAT_NORMS, *MIXTRAL_EXPERTS, *_BIAS, *PRE_NORMS),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "bos_token_id": 200034,
            "eos_token_id": 200020,
        },
    )
}
