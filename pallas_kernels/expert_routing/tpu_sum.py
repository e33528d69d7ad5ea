"""The TPU backend of the weighted sum of experts, for steps with more rows than one product of XLA's handles well.

Rows are taken by products with twos, as tokens are in `tpu`; but only the rows that an expert of this device has made,
in chunks that are copied while the chunk before is multiplied. XLA gathers all T·C rows one by one.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing.tpu import LANES, ROW_TILE
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import interpret_mode, require

MAX_CHUNK = 256  # rows that are multiplied at once
COLUMNS = 256  # of a product
_MIB = 2**20
_TAKEN_BYTES = {"v4": 4 * _MIB, "v5p": 16 * _MIB, "7x": 16 * _MIB}  # a quarter of the vector memory
_TAKEN_BYTES_ELSEWHERE = 32 * _MIB
# Rows made here up to which multiplying takes fewer cycles than XLA's gather of all rows and what follows it, even if
# some devices have twice as many as others; by the compilers' schedules, see benchmarks/results/notes/2026-11-25.md.
_MOST_ROWS = {"v6e": 2048, "7x": 2048}
_MOST_ROWS_ELSEWHERE = 512


def takes(products: jax.Array, places: jax.Array, rows_here: int, target: Target) -> bool:
    """Return whether tiles are whole and fit, and rows are few enough.

    Args:
        products, places, rows_here, target: see api.can_sum_experts.
    """
    (M, D), T = products.shape, places.shape[0]
    return (
        products.dtype == jnp.bfloat16
        and T % ROW_TILE == 0
        and D % COLUMNS == 0
        and rows_here <= _MOST_ROWS.get(target.kind, _MOST_ROWS_ELSEWHERE)
        and _TAKEN_BYTES.get(target.kind, _TAKEN_BYTES_ELSEWHERE) >= M * D * 4
    )


def weighted_sum(
    products: jax.Array, weights: jax.Array, places: jax.Array, dtype: DTypeLike, target: Target
) -> jax.Array:
    """Sum as api.sum_experts.

    Raises:
        NotImplementedError: the target is no TPU.
    """
    require(target)
    (M, D), T = products.shape, places.shape[0]
    chunk = next(size for size in range(MAX_CHUNK, 0, -ROW_TILE) if M % size == 0)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    scratch: list[tuple[tuple[int, ...], DTypeLike]]
    scratch = [((M, D), jnp.float32), ((M, chunk), products.dtype), ((2, chunk, D), products.dtype)]
    num_bytes = sum(math.prod(shape) * jnp.dtype(kind).itemsize for shape, kind in scratch)
    call = pl.pallas_call(
        _kernel,
        in_specs=[whole, whole, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct((T, D), dtype),
        scratch_shapes=[*(pltpu.VMEM(*one) for one in scratch), pltpu.SemaphoreType.DMA((2,))],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=num_bytes + 8 * _MIB),
        interpret=interpret_mode(target),
        name=f"sum_experts_{T}",
    )
    out: jax.Array = call(weights, places, products)
    return out


def _kernel(
    weights: jax.Array,
    places: jax.Array,
    products: jax.Array,
    out: jax.Array,
    taken: jax.Array,
    twos: jax.Array,
    chunks: jax.Array,
    arrived: jax.Array,
) -> None:
    """Run the kernel. Refs: see api.sum_experts.

    Args:
        taken: f32[C·T, D], the rows of all tokens' first choices, of their second ones…
        twos: [C·T, chunk], 2 where a row of the chunk is taken.
        chunks, arrived: two buffers of rows, and their semaphores.
    """
    (T, C), D, size = places.shape, out.shape[1], chunks.shape[1]
    num_chunks = jnp.maximum(pl.cdiv(jnp.max(places[...]) + 1, size), 1)

    def copy(number: jax.Array | int) -> Any:
        buffer = lax.rem(number, 2)
        return pltpu.make_async_copy(products.at[pl.ds(number * size, size)], chunks.at[buffer], arrived.at[buffer])

    def take(number: jax.Array | int, *, is_first: bool) -> None:
        pl.when(number + 1 < num_chunks)(lambda: copy(number + 1).start())
        row = lax.broadcasted_iota(jnp.int32, (T, size), 1) + number * size
        for choice in range(C):
            is_taken = places[:, choice : choice + 1] == row
            twos[choice * T : (choice + 1) * T] = jnp.where(is_taken, 2.0, 0.0).astype(twos.dtype)
        copy(number).wait()

        def multiply(block: jax.Array, _: None) -> None:
            columns = pl.ds(pl.multiple_of(block * COLUMNS, COLUMNS), COLUMNS)
            # Zero times NaN or infinity is NaN: see `tpu.route`.
            rows = chunks[lax.rem(number, 2), :, columns].astype(jnp.float32)
            halves = jnp.where(jnp.abs(rows) < jnp.inf, rows * 0.5, float(jnp.finfo(twos.dtype).max))
            some = jnp.dot(twos[...], halves.astype(twos.dtype), preferred_element_type=jnp.float32)
            taken[:, columns] = some if is_first else taken[:, columns] + some

        lax.fori_loop(0, D // COLUMNS, multiply, None)

    def add_up(tile: jax.Array, _: None) -> None:
        begin = pl.multiple_of(tile * ROW_TILE, ROW_TILE)
        own = weights[pl.ds(begin, ROW_TILE), :]
        shares = [jnp.broadcast_to(own[:, choice : choice + 1], (ROW_TILE, LANES)) for choice in range(C)]
        for column in range(0, D, LANES):
            at = slice(column, column + LANES)
            total = jnp.zeros((ROW_TILE, LANES), jnp.float32)
            for choice, share in enumerate(shares):
                total += share * taken[pl.ds(choice * T + begin, ROW_TILE), at]
            out[pl.ds(begin, ROW_TILE), at] = total.astype(out.dtype)

    copy(0).start()
    take(0, is_first=True)
    lax.fori_loop(1, num_chunks, lambda number, _: take(number, is_first=False), None)
    lax.fori_loop(0, T // ROW_TILE, add_up, None)
