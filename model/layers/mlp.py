"""The feed-forward network."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import nn

from palladio.model.base.module import Context, Module
from palladio.model.config.config import ModelConfig
from palladio.model.layers.divided_tokens import DividedTokens
from palladio.model.layers.linear import Linear
from palladio.model.spec.layer_spec import Activation, DenseSpec


def _gelu(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=False)


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=True)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * nn.sigmoid(1.702 * x)


def _relu2(x: jax.Array) -> jax.Array:
    return jnp.square(nn.relu(x))


ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": nn.silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": nn.relu,
    "relu2": _relu2,
}


class GatedMLP(Module):
    """down(activation(gate(x)) · up(x)); gate and up are one kernel [D, 2, F]."""

    def __init__(
        self, context: Context, config: ModelConfig, spec: DenseSpec, tokens: DividedTokens | None = None
    ) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(context, (D, 2, F), (None, None, "ffw"), bias=spec.bias)
        self.down = Linear(context, (F, D), ("ffw", None), bias=spec.bias, tokens=tokens)
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute [T, D] → [T, D], divided where DividedTokens applies."""
        return _between(x, self.gate_up, self._inner, self.down)

    def _inner(self, both: jax.Array) -> jax.Array:
        """Apply the activation: [T, 2, F] → [T, F]."""
        return ACTIVATIONS[self.spec.activation](both[:, 0]) * both[:, 1]


class PlainMLP(Module):
    """down(activation(up(x)))."""

    def __init__(
        self, context: Context, config: ModelConfig, spec: DenseSpec, tokens: DividedTokens | None = None
    ) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.up = Linear(context, (D, F), (None, "ffw"), bias=spec.bias)
        self.down = Linear(context, (F, D), ("ffw", None), bias=spec.bias, tokens=tokens)
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute [T, D] → [T, D], divided where DividedTokens applies."""
        return _between(x, self.up, ACTIVATIONS[self.spec.activation], self.down)


def _between(x: jax.Array, up: Linear, inner: Callable[[jax.Array], jax.Array], down: Linear) -> jax.Array:
    """Compute down(inner(up(x)))."""
    if (tokens := down.tokens) is None:
        return down(inner(up(x)))
    if up.bias is None and down.bias is None:
        done = tokens.ring(x, up.kernel, inner, down.kernel)
        if done is not None:
            return done
    return down(inner(up(tokens.gather(x))))
