"""How far results may be from the reference's."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.runtime.core.trials.case import HostArray

# Of each row: the norm of the error over the norm of the row. Rounding results and weights gives about a third of
# these; a factor that is wrong by 1 % gives more.
BOUNDS: Final[Mapping[str, float]] = MappingProxyType({"float32": 2**-10, "bfloat16": 2**-7, "float16": 2**-9})


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """How results differ from the reference's.

    Attributes:
        error: the largest relative error of a row; infinity where a number is not finite or an integer differs.
        bound: the largest that is right.
        text: what is wrong, for people; empty: nothing is.
    """

    error: float
    bound: float
    text: str = ""


def compare(results: Sequence[HostArray], expected: Sequence[HostArray], dtype: DTypeLike) -> Difference:
    """Compare rows of results with those of the reference.

    Args:
        results, expected: arrays [rows, …] alike.
        dtype: dtype whose bound holds for all floats.
    """
    bound = BOUNDS[jnp.dtype(dtype).name]
    found = [Difference(0.0, bound)]
    found += [_compared(one, other, bound) for one, other in zip(results, expected, strict=True)]
    return max(found, key=lambda one: one.error)


def _compared(result: HostArray, expected: HostArray, bound: float) -> Difference:
    if expected.size == 0:
        return Difference(0.0, bound)
    if jnp.issubdtype(expected.dtype, jnp.integer) or expected.dtype == bool:
        wrong = int(np.count_nonzero(result != expected))
        text = f"{wrong} of {expected.size} whole numbers are wrong"
        return Difference(float("inf"), bound, text) if wrong else Difference(0.0, bound)
    rows, right = (np.asarray(x, np.float64).reshape(x.shape[0], -1) for x in (result, expected))
    if not np.isfinite(right).all():
        return Difference(float("inf"), bound, "the reference is not finite on this device")
    broken = ~np.isfinite(rows).all(axis=1)
    if broken.any():
        text = f"{np.count_nonzero(broken)} of {len(rows)} rows are not finite, the first is row {int(broken.argmax())}"
        return Difference(float("inf"), bound, text)
    size = np.linalg.norm(right, axis=1)
    errors = np.linalg.norm(rows - right, axis=1) / np.where(size == 0, 1.0, size)
    worst = int(errors.argmax())
    error = float(errors[worst])
    text = f"row {worst} of {len(rows)} is wrong by {error:.2g} of its size, more than {bound:.2g}"
    return Difference(error, bound, text if error > bound else "")
