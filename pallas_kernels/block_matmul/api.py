"""The public interface of block matmul; picks a backend."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.pallas_kernels.block_matmul import gpu_mosaic, gpu_triton, reference
from palladio.pallas_kernels.block_matmul.rounding import rounded_groups
from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.mosaic import auto_order
from palladio.pallas_kernels.target import Target

OP = "block_matmul"
BACKENDS = {"gpu_mosaic": gpu_mosaic.matmul, "gpu_triton": gpu_triton.matmul, "reference": reference.matmul}
AUTO_ORDER = {
    "cpu": ("reference",),
    "tpu": ("reference",),
    "gpu": ("gpu_mosaic", "gpu_triton", "reference"),
}


def block_matmul(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    *,
    group: int,
    out_dtype: DTypeLike,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Round rows to float8, and multiply them with a float8 matrix; each group's sum is multiplied with both factors.
    Sums are in float32.

    Args:
        rows: [M, D], in any dtype.
        matrix: f8[F, D], inputs last: tensor cores multiply float8 only this way.
        scales: f32[ceil(D / group), F].
        group: inputs that share a factor, on either side.
        out_dtype: dtype of the result.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        [M, F].

    Raises:
        ValueError: unknown backend, or arguments that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    (M, D), F = rows.shape, matrix.shape[0]
    if matrix.shape != (F, D) or scales.shape != (-(-D // group), F) or matrix.dtype != jnp.float8_e4m3fn:
        raise ValueError(
            f"rows {(M, D)}, matrix {matrix.dtype}{matrix.shape} and scales {scales.shape} of groups of {group} do not "
            "fit together: they are [M, D], float8_e4m3fn[F, D] and [D / group, F]"
        )
    numbers, factors = rounded_groups(rows, group)
    calls = {
        name: functools.partial(call, numbers, factors, matrix, scales, group, jnp.dtype(out_dtype), target)
        for name, call in BACKENDS.items()
    }
    return dispatch(OP, calls, order_of(target), backend)


def order_of(target: Target) -> tuple[str, ...]:
    """Return the backends that `auto` tries for a target, best first."""
    return auto_order(target, target.kept(OP, AUTO_ORDER[target.platform]))


def refusal_of_kernels(group: int, target: Target) -> str | None:
    """Return why both sides are widened before a product; None: they are not."""
    if target.platform != "gpu":
        return f"there is no kernel for {target.platform.upper()}"
    return gpu_triton.refusal_of_group(group)
