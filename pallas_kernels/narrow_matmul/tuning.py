"""Measurements of `palladio tune`: products of float32 and of bfloat16 weights, in comparison, by rows and hidden
size."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.narrow_matmul.api import narrow_matmul
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts

HIDDEN_SIZES: Final = (128, 256, 512, 768, 1024)
ROWS: Final = (1, 4, 20, 64, 256)
PADDINGS: Final = (1, 2, 4)
_LAYERS: Final = 24  # matrices in a row, as in a model: one alone would stay in a cache
_ROUNDS: Final = 7
_LEAST_MEAN_GAIN: Final = 1.2  # rounding is not for nothing
_LEAST_GAIN: Final = 0.6  # at any number of rows


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of one product [rows, hidden] x [hidden, 4 * hidden], the least of some rounds.

    Attributes:
        float32: milliseconds with weights [in, out].
        bfloat16: milliseconds with weights [out, in].
    """

    hidden_size: int
    rows: int
    float32: float
    bfloat16: float


def best_padding() -> int:
    """Return the rows to pad one row to: the fastest of PADDINGS."""
    _, narrow = _weights(max(HIDDEN_SIZES))
    row = jnp.ones((1, max(HIDDEN_SIZES)), jnp.float32)
    return min(PADDINGS, key=lambda rows: least_times((_narrow(NarrowProducts(rows)), row, narrow))[0])


def measure(products: NarrowProducts) -> Iterator[Measured]:
    """Measure both kinds of weight in alternation, so that other load slows both."""
    for hidden_size in HIDDEN_SIZES:
        wide, narrow = _weights(hidden_size)
        for rows in ROWS:
            x = jax.random.normal(jax.random.key(rows), (rows, hidden_size))
            yield Measured(hidden_size, rows, *least_times((_wide, x, wide), (_narrow(products), x, narrow)))


def least_hidden_size(figures: list[Measured]) -> int | None:
    """Return the smallest hidden size from which on bfloat16 is clearly faster, by the geometric mean over rows, and
    nowhere much slower; None: there is none."""
    found = None
    for hidden_size in sorted({figure.hidden_size for figure in figures}, reverse=True):
        gains = [figure.float32 / figure.bfloat16 for figure in figures if figure.hidden_size == hidden_size]
        if statistics.geometric_mean(gains) < _LEAST_MEAN_GAIN or min(gains) < _LEAST_GAIN:
            break
        found = hidden_size
    return found


_Call = tuple[Callable[..., jax.Array], jax.Array, tuple[jax.Array, ...]]


def _weights(hidden_size: int) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    keys = jax.random.split(jax.random.key(0), _LAYERS)
    wide = tuple(jax.random.normal(key, (hidden_size, 4 * hidden_size)) for key in keys)
    return wide, tuple(jax.block_until_ready(each.T.astype(jnp.bfloat16)) for each in wide)


@jax.jit
def _wide(x: jax.Array, *matrices: jax.Array) -> jax.Array:
    return sum((lax.dot(x, each) for each in matrices), jnp.float32(0))


def _narrow(products: NarrowProducts) -> Callable[..., jax.Array]:
    @jax.jit
    def multiply(x: jax.Array, *matrices: jax.Array) -> jax.Array:
        return sum((narrow_matmul(x, each, products) for each in matrices), jnp.float32(0))

    return multiply


def least_times(*calls: _Call) -> list[float]:
    """Return the milliseconds of a product, for each call."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(_ROUNDS + 1):  # the first compiles
        for found, (function, x, matrices) in zip(times, calls, strict=True):
            start = time.perf_counter()
            function(x, *matrices).block_until_ready()
            if number:
                found.append((time.perf_counter() - start) * 1e3 / _LAYERS)
    return [min(found) for found in times]
