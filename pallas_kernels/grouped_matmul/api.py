"""The public interface of grouped matmul; picks a backend."""

import functools

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.grouped_matmul import gpu_mosaic, gpu_triton, reference, tpu_scaled, xla
from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.mosaic import auto_order
from palladio.pallas_kernels.target import Target

OP = "grouped_matmul"
BACKENDS = {
    "gpu_mosaic": gpu_mosaic.matmul,
    "gpu_triton": gpu_triton.matmul,
    "tpu_scaled": tpu_scaled.matmul,
    "xla": xla.matmul,
    "reference": reference.matmul,
}
WIDENING = ("xla", "reference")  # backends that widen matrices with scales before they multiply
ROWS_TOLD = 64  # of a product whose backend is asked for: no kernel looks at them

AUTO_ORDER = {
    "cpu": ("xla", "reference"),
    "tpu": ("tpu_scaled", "xla", "reference"),
    "gpu": ("gpu_mosaic", "gpu_triton", "xla", "reference"),
}


def grouped_matmul(
    rows: jax.Array,
    matrices: jax.Array,
    group_sizes: jax.Array,
    *,
    scales: Scales | None = None,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Multiply the first group of rows with the first matrix, the next one with the second, and so on.

    Args:
        rows: [M, D].
        matrices: [E, D, F] in the dtype of rows, or in 4 or 8 bits where there are scales.
        group_sizes: i32[E], rows of each group; their sum is at most M.
        scales: factors on the matrices' numbers; None: the matrices hold the numbers themselves.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        [M, F] in rows' dtype; 0 for rows of no group. Sums are in float32.

    Raises:
        ValueError: unknown backend, or arguments that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    E, D, _ = matrices.shape
    if rows.shape[1] != D or group_sizes.shape != (E,):
        raise ValueError(
            f"rows {rows.shape}, matrices {matrices.shape} and group_sizes {group_sizes.shape} do not fit together: "
            "they are [M, D], [E, D, F] and [E]"
        )
    if scales is not None and not scales.is_of(matrices):
        raise ValueError(f"scales {scales.values.shape} of groups of {scales.group} do not fit {matrices.shape}")
    if (rows.dtype != matrices.dtype and scales is None) or group_sizes.dtype != jnp.int32:
        raise ValueError(
            f"rows ({rows.dtype}) and matrices ({matrices.dtype}) must have one dtype, and group_sizes "
            f"({group_sizes.dtype}) int32"
        )
    calls = {
        name: functools.partial(call, rows, matrices, group_sizes, target, scales=scales)
        for name, call in BACKENDS.items()
    }
    return dispatch(OP, calls, order_of(target), backend)


def order_of(target: Target) -> tuple[str, ...]:
    """Return the backends that `auto` tries for a target, best first."""
    return auto_order(target, target.kept(OP, AUTO_ORDER[target.platform]))


def refusal_of_kernels(
    dtype: jnp.dtype,
    matrices: jax.ShapeDtypeStruct,
    group: int,
    *,
    has_zeros: bool,
    is_float4: bool,
    backend: str = "auto",
    target: Target = Target(),
) -> str | None:
    """Return why no backend multiplies such matrices without a widened copy of them; None: one does.

    Args:
        dtype: dtype of rows.
        matrices: [E, D, F].
        group, is_float4: see Scales.
        has_zeros: the scales have zeros.
    """
    E, D, F = matrices.shape
    factors = jax.ShapeDtypeStruct((E, -(-D // group), F), jnp.float32)
    shapes = jax.ShapeDtypeStruct((ROWS_TOLD, D), dtype), matrices, jax.ShapeDtypeStruct((E,), jnp.int32), factors
    refusals = []
    for name in order_of(target) if backend == "auto" else (backend,):
        if name in WIDENING:
            continue

        def call(rows: jax.Array, *arrays: jax.Array, name: str = name) -> jax.Array:
            matrices, sizes, factors = arrays
            scales = Scales(factors, group, factors if has_zeros else None, is_float4=is_float4)
            return BACKENDS[name](rows, matrices, sizes, target, scales=scales)

        try:
            jax.eval_shape(call, *shapes)
        except NotImplementedError as refusal:
            refusals.append(str(refusal))
        else:
            return None
    return refusals[-1] if refusals else f"there is no kernel for {target.platform.upper()}"
