"""Granite 3 (dense): Llama with factors on embeddings, scores, residual sums and logits."""

import dataclasses

from palladio.model.families import llama
from palladio.model.family import Family
from palladio.model.hf_config import HfConfig
from palladio.model.layer_spec import DecoderSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    plain = llama.describe(hf)
    layer = dataclasses.replace(
        plain.layers[0].with_attention(scale=hf.number("attention_multiplier")),
        residual_scale=hf.number("residual_multiplier"),
    )
    return dataclasses.replace(
        plain,
        layers=(layer,) * hf.num_layers,
        embedding_scale=hf.number("embedding_multiplier"),
        logits_scale=1 / hf.number("logits_scaling"),
    )


_FACTORS = ("attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling")

FAMILIES = {
    "GraniteForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={**llama.LLAMA.defaults, **dict.fromkeys(_FACTORS, 1.0)},
    )
}
