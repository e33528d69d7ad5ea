"""OLMoE: a mixture of experts on every layer, and norms of all query heads and of all key heads together."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import ATTENTION, EXPERTS, PRE_NORMS, TABLES
from palladio.model.families.olmo import FLAT_NORMS
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, LayerSpec, QKNormSpec, RouterSpec, SparseSpec

_KEYS = ExpertKeys(
    num_experts="num_experts",
    other_name="num_local_experts",
    other_name_wins=True,
    intermediate_size="intermediate_size",
)


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("clip_qkv", None, default=None)
    hf.no_windows()
    norm, has_bias = hf.rms_norm(), hf.flag("attention_bias", default=False)
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(),
            scale=hf.scale,
            qk_norm=QKNormSpec(norm=norm, form="all_heads"),
            qkv_bias=has_bias,
            output_bias=has_bias,
        ),
        mlp=SparseSpec(
            router=RouterSpec(renormalize=hf.flag("norm_topk_prob", default=False)), activation=hf.activation()
        ),
        norm=norm,
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm, experts=ExpertsConfig.from_hf(hf, _KEYS))


FAMILIES = {
    "OlmoeForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *FLAT_NORMS, *EXPERTS, *PRE_NORMS),
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "pad_token_id": 1,
            "eos_token_id": 50279,
        },
    )
}
