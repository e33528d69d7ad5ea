"""Linear: one matrix product whose kernel may have several output dimensions, so fused projections stay one product."""

import jax
from jax import lax

from palladio.model.module import Context, Initializer, Module


class Linear(Module):
    """y = x @ kernel + bias.

    The kernel is [in, out…], row-major: XLA:CPU is up to ten times slower on a transposed one where out < in.
    XLA folds the output dimensions into one product; keeping them apart lets a fused kernel shard over one of them.
    """

    def __init__(self, context: Context, shape: tuple[int, ...], axes: tuple[str | None, ...], *, bias: bool) -> None:
        """`shape` and `axes` are the kernel's, the input dimension first."""
        self.kernel = context.param(shape, axes, Initializer("uniform"))
        self.bias = context.param(shape[1:], axes[1:], Initializer("zeros")) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[T, in] → [T, out…]"""
        out: jax.Array = lax.dot_general(x, self.kernel[...], (((1,), (0,)), ((), ())))
        return out if self.bias is None else out + self.bias[...]
