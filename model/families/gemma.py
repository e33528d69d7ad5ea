"""Gemma 1: Llama with larger heads, norms that scale by 1 + weight, and embeddings times √D."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.families import llama
from palladio.model.spec.layer_spec import DecoderSpec, DenseSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("use_bidirectional_attention", False, default=False)
    plain, norm = llama.describe(hf), hf.rms_norm("plus_one")
    activation = hf.activation(default="gelu_pytorch_tanh")
    mlp = DenseSpec(activation="gelu_tanh" if activation == "gelu" else activation)  # as the first files name it
    layer = dataclasses.replace(plain.layers[0], mlp=mlp, norm=norm)
    return dataclasses.replace(
        plain,
        layers=(layer,) * hf.num_layers,
        norm=norm,
        embedding_scale=hf.hidden_size**0.5,
        overflows_float16=True,
    )


FAMILIES = {
    "GemmaForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 1,
        },
    )
}
