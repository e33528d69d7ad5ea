"""Products with a kernel or a table: projections, the token table, and heads."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.layers.divided_tokens import DividedTokens
from palladio.model.spec.classifier import Classifier
from palladio.model.weights.weight import Dense, Weight


class Linear(Module):
    """y = x @ kernel + bias.

    The kernel is [in, out…], row-major: XLA:CPU is up to ten times slower on a transposed one where out < in.
    XLA folds the output dimensions into one product; keeping them apart lets a fused kernel shard over one of them.
    """

    def __init__(
        self,
        context: Context,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        *,
        bias: bool,
        tokens: DividedTokens | None = None,
    ) -> None:
        """Make the parameters.

        Args:
            shape, axes: those of the kernel, the input dimension first.
            tokens: how to divide results that are summed over devices; None: each device has all of them.
        """
        self.shape = shape
        self.kernel: Weight = Dense(context, shape, axes, inputs=0)
        self.tokens = tokens
        self.bias = context.param(shape[1:], axes[1:], Initializer("zeros")) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply: [T, in] → [T, out…]."""
        out = self.kernel.matmul(x) if self.tokens is None else self.tokens.product(self.kernel, x)
        return out if self.bias is None else out + self.bias[...].astype(out.dtype)


class TokenTable(Module):
    """A table [V, D], as checkpoints store both the embedding and the output head, so that either can serve as the
    other."""

    def __init__(self, context: Context, vocab_size: int, hidden_size: int) -> None:
        self.table: Weight = Dense(context, (vocab_size, hidden_size), ("vocab", None), inputs=1)
        self.dtype = jnp.dtype(context.activations)

    def embed(self, token_ids: jax.Array) -> jax.Array:
        """Look up embeddings: i32[T] → [T, D]."""
        return self.table.take(token_ids, self.dtype)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Compute logits: [R, D] → f32[R, V], accumulated in float32."""
        # Both sides contract their last dimension: on XLA:CPU as fast as a transposed table (bfloat16: far faster).
        return self.table.matmul(hidden, out_dtype=jnp.float32)


class HeadBias(Module):
    """A bias [V] of logits, in float32. It is no part of a TokenTable: a tied one has no bias where it embeds."""

    def __init__(self, context: Context, vocab_size: int) -> None:
        self.bias = context.param((vocab_size,), ("vocab",), Initializer("zeros"), jnp.float32)


class ClassHead(Module):
    """A head [L, D], perhaps with a bias [L]; never quantized, whole on every device, and computed in float32."""

    def __init__(self, context: Context, classifier: Classifier, hidden_size: int) -> None:
        rows = classifier.num_rows
        self.table = context.param((rows, hidden_size), (None, None), Initializer("uniform", fan_in=1))
        self.bias = context.param((rows,), (None,), Initializer("zeros")) if classifier.has_bias else None

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Compute class logits: [R, D] → f32[R, L]."""
        table = self.table[...].astype(jnp.float32)
        found = jnp.matmul(hidden.astype(jnp.float32), table.T, precision=lax.Precision.HIGHEST)
        return found if self.bias is None else found + self.bias[...].astype(jnp.float32)
