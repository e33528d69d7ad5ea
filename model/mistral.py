"""Mistral (dense): Llama without biases, with a sliding window on every layer."""

from palladio.model.family import DECODER_WEIGHTS, ROTARY_BUFFERS, Family

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

FAMILIES = {"MistralForCausalLM": MISTRAL}
