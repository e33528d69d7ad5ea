"""Qwen2, Qwen2.5 and Qwen3 (dense), and what is distilled into them."""

from palladio.model.family import DECODER_WEIGHTS, ROTARY_BUFFERS, Family

QWEN2 = Family(
    qkv_bias="always",
    output_bias="never",
    mlp_bias="never",
    qk_norm=False,
    head_size=None,
    num_kv_heads=32,
    sliding_window="upper",
    default_sliding_window=4096,
    default_max_position_embeddings=32768,
    bos_token_id=None,
    eos_token_id=None,
    weights=DECODER_WEIGHTS,
    ignored=ROTARY_BUFFERS,
)

QWEN3 = Family(
    qkv_bias="configured",
    output_bias="configured",
    mlp_bias="never",
    qk_norm=True,
    head_size=128,
    num_kv_heads=32,
    sliding_window="upper",
    default_sliding_window=4096,
    default_max_position_embeddings=32768,
    bos_token_id=None,
    eos_token_id=None,
    weights=DECODER_WEIGHTS,
    ignored=ROTARY_BUFFERS,
)

FAMILIES = {"Qwen2ForCausalLM": QWEN2, "Qwen3ForCausalLM": QWEN3}
