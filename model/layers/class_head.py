"""The head of a model that classifies: a logit for each label."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.spec.classifier import Classifier


class ClassHead(Module):
    """[L, D] and perhaps a bias [L]; never quantized, whole on every device, and computed in float32."""

    def __init__(self, context: Context, classifier: Classifier, hidden_size: int) -> None:
        rows = classifier.num_rows
        self.table = context.param((rows, hidden_size), (None, None), Initializer("uniform", fan_in=1))
        self.bias = context.param((rows,), (None,), Initializer("zeros")) if classifier.has_bias else None

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[R, D] → f32[R, L]"""
        table = self.table[...].astype(jnp.float32)
        found = jnp.matmul(hidden.astype(jnp.float32), table.T, precision=lax.Precision.HIGHEST)
        return found if self.bias is None else found + self.bias[...].astype(jnp.float32)
