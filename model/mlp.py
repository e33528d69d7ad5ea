"""The gated feed-forward network."""

import jax

from palladio.model.config import ModelConfig
from palladio.model.linear import Linear
from palladio.model.module import Context, Module


class GatedMLP(Module):
    """down(silu(gate(x)) · up(x)); gate and up are one kernel [D, 2, F]."""

    def __init__(self, context: Context, config: ModelConfig) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(context, (D, 2, F), (None, None, "ffw"), bias=config.mlp_bias)
        self.down = Linear(context, (F, D), ("ffw", None), bias=config.mlp_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[T, D] → [T, D]"""
        both = self.gate_up(x)  # [T, 2, F]
        return self.down(jax.nn.silu(both[:, 0]) * both[:, 1])
