"""Mistral: Llama without biases, with a sliding window on every layer; and Mixtral, its mixture of experts."""

import dataclasses

from palladio.model.family import DECODER_WEIGHTS, MIXTRAL_EXPERTS, ROTARY_BUFFERS, ExpertKeys, Family

MISTRAL = Family(
    qkv_bias="never",
    output_bias="never",
    mlp_bias="never",
    qk_norm=False,
    head_size=None,
    num_kv_heads=8,
    sliding_window="all",
    default_sliding_window=4096,
    default_max_position_embeddings=131072,
    bos_token_id=1,
    eos_token_id=2,
    weights=DECODER_WEIGHTS,
    ignored=ROTARY_BUFFERS,
)

MIXTRAL = dataclasses.replace(
    MISTRAL,
    default_sliding_window=None,
    default_rope_theta=1e6,
    default_rms_norm_eps=1e-5,
    weights=(*DECODER_WEIGHTS, *MIXTRAL_EXPERTS),
    experts=ExpertKeys(
        num_experts="num_local_experts",
        other_name_wins=True,
        intermediate_size="intermediate_size",
        shared_intermediate_size=None,
        always_renormalized=True,
        dense_layers=False,
    ),
)

FAMILIES = {"MistralForCausalLM": MISTRAL, "MixtralForCausalLM": MIXTRAL}
