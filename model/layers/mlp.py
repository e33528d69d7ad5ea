"""The feed-forward network."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import nn

from palladio.model.base.module import Context, Initializer, Module
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


class LearnedCurve(Module):
    """xIELU: p · x² + β · x above 0, and n · (exp(min(x, ε)) - 1 - x) + β · x elsewhere, computed in float32.

    p is softplus(alpha_p), and n is β + softplus(alpha_n). β and ε are stored beside the two that training changes.
    """

    def __init__(self, context: Context) -> None:
        zeros = Initializer("zeros")
        self.alpha_p = context.param((1,), (None,), zeros, jnp.float32)
        self.alpha_n = context.param((1,), (None,), zeros, jnp.float32)
        self.beta = context.param((1,), (None,), Initializer("ones"), jnp.float32)
        self.eps = context.param((1,), (None,), zeros, jnp.float32)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute […] → […]."""
        wide, beta = x.astype(jnp.float32), self.beta[...]
        above = nn.softplus(self.alpha_p[...]) * jnp.square(wide)
        below = (beta + nn.softplus(self.alpha_n[...])) * (jnp.expm1(jnp.minimum(wide, self.eps[...])) - wide)
        sums: jax.Array = jnp.where(wide > 0, above, below) + beta * wide
        return sums.astype(x.dtype)


class GatedMLP(Module):
    """down(activation(gate(x)) · up(x)); gate and up are one kernel [D, 2, F]."""

    def __init__(
        self, context: Context, config: ModelConfig, spec: DenseSpec, tokens: DividedTokens | None = None
    ) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(context, (D, 2, F), (None, None, "ffw"), bias=spec.bias)
        self.down = Linear(context, (F, D), ("ffw", None), bias=spec.has_output_bias, tokens=tokens)
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute [T, D] → [T, D], divided where DividedTokens applies."""
        return _between(x, self.gate_up, self._inner, self.down)

    def _inner(self, both: jax.Array) -> jax.Array:
        """Apply the activation: [T, 2, F] → [T, F]."""
        assert self.spec.activation != "xielu", "no family has a gate with it"
        return ACTIVATIONS[self.spec.activation](both[:, 0]) * both[:, 1]


class PlainMLP(Module):
    """down(activation(up(x)))."""

    def __init__(
        self, context: Context, config: ModelConfig, spec: DenseSpec, tokens: DividedTokens | None = None
    ) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.up = Linear(context, (D, F), (None, "ffw"), bias=spec.bias)
        self.down = Linear(context, (F, D), ("ffw", None), bias=spec.has_output_bias, tokens=tokens)
        self.curve = LearnedCurve(context) if spec.activation == "xielu" else None
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute [T, D] → [T, D], divided where DividedTokens applies."""
        return _between(x, self.up, self._inner, self.down, has_ring=self.curve is None)

    def _inner(self, x: jax.Array) -> jax.Array:
        """Apply the activation: [T, F] → [T, F]."""
        if self.curve is not None:
            return self.curve(x)
        assert self.spec.activation != "xielu"
        return ACTIVATIONS[self.spec.activation](x)


def _between(
    x: jax.Array, up: Linear, inner: Callable[[jax.Array], jax.Array], down: Linear, *, has_ring: bool = True
) -> jax.Array:
    """Compute down(inner(up(x))).

    Args:
        has_ring: `inner` has no parameters, so that devices may compute it in a ring.
    """
    if (tokens := down.tokens) is None:
        return down(inner(up(x)))
    if has_ring and up.bias is None and down.bias is None:
        done = tokens.ring(x, up.kernel, inner, down.kernel)
        if done is not None:
            return done
    return down(inner(up(tokens.gather(x))))
