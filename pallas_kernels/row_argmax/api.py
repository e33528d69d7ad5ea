"""The public interface of row argmax; picks a backend."""

import functools

import jax

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.row_argmax import cpu_native, reference, xla
from palladio.pallas_kernels.target import Target

BACKENDS = {"cpu_native": cpu_native.row_argmax, "xla": xla.row_argmax, "reference": reference.row_argmax}
AUTO_ORDER = {
    "cpu": ("cpu_native", "xla", "reference"),
    "tpu": ("xla", "reference"),
    "gpu": ("xla", "reference"),
}


def row_argmax(
    values: jax.Array, *, is_computed: bool = False, backend: str = "auto", target: Target = Target()
) -> tuple[jax.Array, jax.Array]:
    """Find the largest value of each row.

    Args:
        values: [B, V] of floats.
        is_computed: whether the same program computes the values; then the id of a row with NaN may be any.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        i32[B], the id of that value: the lowest of equals, where -0 equals 0, and NaN is larger than all. bool[B],
        whether the value is finite: no NaN, no +inf, and not all values are -inf.

    Raises:
        ValueError: unknown backend, or `values` has another number of dimensions.
        NotImplementedError: no backend accepts the call.
    """
    if values.ndim != 2:
        raise ValueError(f"values {values.shape} are no rows [B, V]")
    calls = {name: functools.partial(call, values, target, is_computed=is_computed) for name, call in BACKENDS.items()}
    return dispatch("row_argmax", calls, AUTO_ORDER[target.platform], backend)
