"""Token table: ids to vectors on the way in, vectors to logits on the way out."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.module import Context, Initializer, Module


class TokenTable(Module):
    """[V, D], as checkpoints store both the embedding and the output head, so that either can serve as the other."""

    def __init__(self, context: Context, vocab_size: int, hidden_size: int) -> None:
        self.table = context.param((vocab_size, hidden_size), ("vocab", None), Initializer("uniform", fan_in=1))

    def embed(self, token_ids: jax.Array) -> jax.Array:
        """i32[T] → [T, D]"""
        out: jax.Array = jnp.take(self.table[...], token_ids, axis=0, mode="clip")
        return out

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[R, D] → f32[R, V], accumulated in float32."""
        # Both sides contract their last dimension: on XLA:CPU as fast as a transposed table (bfloat16: far faster).
        out: jax.Array = lax.dot_general(
            hidden, self.table[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        return out
