"""Hunyuan, dense (0.5B to 7B): Llama that normalizes queries and keys after their rotation, with a base that grows."""

import dataclasses

from palladio.model.base.config_keys import Keys
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, MLP, PRE_NORMS, TABLES
from palladio.model.families import llama
from palladio.model.spec.layer_spec import DecoderSpec, QKNormSpec
from palladio.model.spec.rope_config import RopeConfig


def _describe(hf: HfConfig) -> DecoderSpec:
    plain = llama.describe(hf)
    norm = QKNormSpec(norm=plain.norm, after_rotation=True)
    layer = plain.layers[0].with_attention(rope=_rope(hf), qk_norm=norm)
    return dataclasses.replace(plain, layers=(layer,) * hf.num_layers)


def _rope(hf: HfConfig) -> RopeConfig:
    """Read the rotary embedding. Scaling of type dynamic with an alpha is none: it gives the frequencies another base,
    whatever the length."""
    rope = hf.rope()
    found = hf.values.get("rope_scaling") or hf.values.get("rope_parameters") or {}
    if rope.kind != "dynamic" or not found.get("alpha"):
        return rope
    alpha, size = Keys(found, "rope_scaling.").number("alpha"), hf.head_size
    return dataclasses.replace(rope, kind="default", theta=rope.theta * alpha ** (size / (size - 2)))


_NORMS = layer_rules(
    "self_attn.",
    "attention.",
    ("query_layernorm.weight", "query_norm.scale", "vector"),
    ("key_layernorm.weight", "key_norm.scale", "vector"),
)

FAMILIES = {
    "HunYuanDenseV1ForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *_NORMS, *MLP, *PRE_NORMS),
        defaults={
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
}
