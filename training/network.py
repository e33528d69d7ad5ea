"""The network that is trained: the server's own modules, run over packed rows with dense attention and no cache."""

import jax
import jax.numpy as jnp
from flax import nnx
from tokenizers import Tokenizer

from palladio.model.base.module import Context
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.decoder import CausalLM
from palladio.model.layers.attention import Attention
from palladio.model.layers.rope import Rotations
from palladio.pallas_kernels.choice import Kernels

SEED = 20260101  # of the first weights and of the corpus

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
"""Hugging Face's names. 1.2 million parameters: what two CPU cores can teach in a few hours."""


def hf_config(end_of_text: int, message_end: int) -> dict[str, object]:
    """config.json, given the ids of <|endoftext|> and <|im_end|>."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **SHAPE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": end_of_text,
        "eos_token_id": message_end,
    }


def hidden_states(model: CausalLM, token_ids: jax.Array, positions: jax.Array, documents: jax.Array) -> jax.Array:
    """Compute whole rows as the paged decoder would.

    Args:
        token_ids: i32[B, T]
        positions: i32[B, T], within the token's document.
        documents: i32[B, T], document of each token in its row; tokens see only their own.

    Returns:
        f32[B·T, D] after the final norm.
    """
    order = jnp.arange(token_ids.shape[1])
    visible = (documents[:, :, None] == documents[:, None, :]) & (order[:, None] >= order[None, :])
    by = Rotations.of(model.config.ropes, model.config.head_size, positions.reshape(-1))
    x = model.embedding.embed(token_ids.reshape(-1))  # [B·T, D]: the modules take tokens in one dimension
    for layer in model.layers:
        x += _attend(layer.attention, layer.attention_norm(x), by, visible)
        x += layer.mlp(layer.mlp_norm(x))
    return model.norm(x)


def _attend(attention: Attention, x: jax.Array, by: Rotations, visible: jax.Array) -> jax.Array:
    B, T, _ = visible.shape
    qkv = attention.qkv(x)  # [B·T, K, G+2, H]
    _, K, heads, H = qkv.shape
    q, k, v = qkv[:, :, :-2].reshape(B * T, K * (heads - 2), H), qkv[:, :, -2], qkv[:, :, -1]
    assert attention.query_norm is not None
    assert attention.key_norm is not None
    rope = attention.spec.rope
    q, k = by.rotate(attention.query_norm(q), rope), by.rotate(attention.key_norm(k), rope)
    G = heads - 2
    # Products of matrices that lie together: XLA:CPU is slow on others.
    q = q.reshape(B, T, K, G, H).transpose(0, 2, 3, 1, 4).reshape(B * K, G * T, H)
    k = k.reshape(B, T, K, H).transpose(0, 2, 3, 1).reshape(B * K, H, T)
    v = v.reshape(B, T, K, H).transpose(0, 2, 1, 3).reshape(B * K, T, H)
    scores = (q @ k * H**-0.5).reshape(B, K, G, T, T)
    weights = jax.nn.softmax(scores + jnp.where(visible, 0.0, -1e9)[:, None, None], axis=-1)
    out = (weights.reshape(B * K, G * T, T) @ v).reshape(B, K, G, T, H).transpose(0, 3, 1, 2, 4)
    return attention.output(out.reshape(B * T, -1))


def new_model(config: ModelConfig, seed: int) -> CausalLM:
    """Random float32 weights."""
    return CausalLM(config, Context(jnp.float32, jnp.float32, nnx.Rngs(seed)), Kernels(), make_mesh(1))


def model_config(tokenizer: Tokenizer) -> ModelConfig:
    """The network's, with the tokenizer's ids."""
    return ModelConfig.from_hf(hf_config(tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")))
