"""The head of an encoder that classifies texts."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.layers.linear import ClassHead
from palladio.model.layers.mlp import ACTIVATIONS
from palladio.model.layers.norm import Norm
from palladio.model.spec.classifier import Classifier
from palladio.model.spec.encoder_spec import EncoderHead


class PooledHead(Module):
    """A projection [D, D] with an activation, perhaps a norm, then a ClassHead; whole on every device, in float32."""

    def __init__(self, context: Context, classifier: Classifier, spec: EncoderHead, hidden_size: int) -> None:
        D, whole = hidden_size, (None, None)
        self.dense = context.param((D, D), whole, Initializer("uniform", fan_in=0))
        self.dense_bias = context.param((D,), (None,), Initializer("zeros")) if spec.bias else None
        self.norm = None if spec.norm is None else Norm(context, D, spec.norm)
        self.labels = ClassHead(context, classifier, D)
        self.spec = spec

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Compute class logits: [R, D] → f32[R, L]."""
        kernel = self.dense[...].astype(jnp.float32)
        x = jnp.matmul(hidden.astype(jnp.float32), kernel, precision=lax.Precision.HIGHEST)
        if self.dense_bias is not None:
            x += self.dense_bias[...].astype(jnp.float32)
        x = jnp.tanh(x) if self.spec.activation == "tanh" else ACTIVATIONS[self.spec.activation](x)
        return self.labels.logits(x if self.norm is None else self.norm(x))
