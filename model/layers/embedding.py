"""Token table: ids to vectors on the way in, vectors to logits on the way out."""

import jax
import jax.numpy as jnp

from palladio.model.base.module import Context, Module
from palladio.model.weights.weight import Dense, Weight


class TokenTable(Module):
    """[V, D], as checkpoints store both the embedding and the output head, so that either can serve as the other."""

    def __init__(self, context: Context, vocab_size: int, hidden_size: int) -> None:
        self.table: Weight = Dense(context, (vocab_size, hidden_size), ("vocab", None), inputs=1)
        self.dtype = jnp.dtype(context.activations)

    def embed(self, token_ids: jax.Array) -> jax.Array:
        """i32[T] → [T, D]"""
        return self.table.take(token_ids, self.dtype)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[R, D] → f32[R, V], accumulated in float32."""
        # Both sides contract their last dimension: on XLA:CPU as fast as a transposed table (bfloat16: far faster).
        return self.table.matmul(hidden, out_dtype=jnp.float32)
