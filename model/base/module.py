"""The base of every module, and how a module makes a parameter: shape, logical axes and initial values in one call."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


class Module(nnx.Module):  # type: ignore[misc]  # flax is not followed by the type checker
    """A Flax NNX module."""


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Initial values of a parameter: all ones, all zeros, or uniform.

    Attributes:
        fan_in: for uniform values, the dimension that is summed over: their standard deviation is its size ** -0.5.
    """

    kind: Literal["ones", "zeros", "uniform"]
    fan_in: int = 0

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """Make an array of `shape`; only "uniform" uses the key."""
        if self.kind == "uniform":
            bound = (3 / shape[self.fan_in]) ** 0.5
            return jax.random.uniform(key, shape, jnp.float32, -bound, bound).astype(dtype)
        return jnp.full(shape, 1 if self.kind == "ones" else 0, dtype)


@dataclasses.dataclass(frozen=True)
class Context:
    """Settings that the model passes to every constructor.

    Attributes:
        activations: dtype of activations.
        weights: dtype of parameters that are not quantized.
        rngs: source of initial values; None: parameters are only shapes.
    """

    activations: DTypeLike
    weights: DTypeLike
    rngs: nnx.Rngs | None

    def param(
        self,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        init: Initializer,
        dtype: DTypeLike | None = None,
    ) -> nnx.Param:
        """Make a parameter that remembers its logical axes (model/base/sharding.py) and its initializer.

        Args:
            dtype: overrides the dtype of weights; None: use the dtype of weights.
        """
        assert len(shape) == len(axes)
        dtype = self.weights if dtype is None else dtype
        if self.rngs is None:
            value: jax.Array | jax.ShapeDtypeStruct = jax.ShapeDtypeStruct(shape, dtype)
        else:
            value = init(self.rngs.params(), shape, dtype)
        return nnx.Param(value, logical_axes=axes, initializer=init)
