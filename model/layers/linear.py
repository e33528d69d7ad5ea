"""Linear: one matrix product whose kernel may have several output dimensions, so fused projections stay one product."""

import jax

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.layers.divided_tokens import DividedTokens
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
        """
        Args:
            shape, axes: of the kernel, the input dimension first.
            tokens: how results are divided that are summed over devices; None: each device has all of them.
        """
        self.shape = shape
        self.kernel: Weight = Dense(context, shape, axes, inputs=0)
        self.tokens = tokens
        self.bias = context.param(shape[1:], axes[1:], Initializer("zeros")) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[T, in] → [T, out…]"""
        out = self.kernel.matmul(x) if self.tokens is None else self.tokens.product(self.kernel, x)
        return out if self.bias is None else out + self.bias[...].astype(out.dtype)
