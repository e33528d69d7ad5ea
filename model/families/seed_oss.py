"""Seed-OSS: Llama with a bias on queries, keys and values, and perhaps another one on the projection back."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.families import llama
from palladio.model.spec.layer_spec import DecoderSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    plain = llama.describe(hf)
    layer = plain.layers[0].with_attention(
        qkv_bias=hf.flag("attention_bias", default=True), output_bias=hf.flag("attention_out_bias", default=False)
    )
    return dataclasses.replace(plain, layers=(layer,) * hf.num_layers)


FAMILIES = {
    "SeedOssForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={
            "attention_bias": True,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    )
}
