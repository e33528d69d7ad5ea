"""Llama, 1 to 3.3, and what is distilled into them."""

from palladio.model.family import DECODER_WEIGHTS, ROTARY_BUFFERS, Family

LLAMA = Family(
    qkv_bias="configured",
    output_bias="configured",
    mlp_bias="configured",
    qk_norm=False,
    head_size=None,
    num_kv_heads=None,
    sliding_window="none",
    default_sliding_window=None,
    default_max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=2,
    weights=DECODER_WEIGHTS,
    ignored=ROTARY_BUFFERS,
)

FAMILIES = {"LlamaForCausalLM": LLAMA}
