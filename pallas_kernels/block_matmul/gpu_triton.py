"""The backend for GPUs, by way of Triton: products of float16, which represents all numbers of float8.

Pallas leaves Triton's limit on inexact sums (max_num_imprecise_acc) at its default. With it Triton converts float8 to
float16 itself, and uses the slower of Hopper's two kinds of tensor core instruction (mma.sync). If we convert first,
products of 64 rows and more are asynchronous (wgmma).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.grouped_matmul.config import MatmulTiles
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import load, refusal, store
from palladio.pallas_kernels.triton import matmul as matmul_tile

MIN_INNER = 16  # of a product on the tensor cores


def matmul(
    rows: jax.Array,
    row_scales: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    group: int,
    out_dtype: jnp.dtype,
    target: Target,
) -> jax.Array:
    """Multiply as block_matmul; rows f8[M, D], row_scales f32[groups, M].

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more, or groups are too small.
    """
    if (reason := refusal(target) or refusal_of_group(group)) is not None:
        raise NotImplementedError(reason)
    (M, D), F = rows.shape, matrix.shape[0]
    tiles = tiles_of(M, D, F, group)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out: jax.Array = pl.pallas_call(
        functools.partial(_multiply_tile, tiles=tiles, group=group),
        grid=(pl.cdiv(M, tiles.rows), pl.cdiv(F, tiles.columns), tiles.parts),
        in_specs=[anywhere] * 4,
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct((tiles.parts, M, F), out_dtype if tiles.parts == 1 else jnp.float32),
        compiler_params=pltriton.CompilerParams(num_warps=tiles.num_warps, num_stages=tiles.num_stages),
        interpret=target.interpret is not None,
        name="block_matmul",
    )(rows, row_scales, matrix, scales)
    return out[0] if tiles.parts == 1 else out.sum(axis=0).astype(out_dtype)


def refusal_of_group(group: int) -> str | None:
    """Return why the backend cannot use groups of this size; None: it can."""
    return f"groups of {group} are no multiple of {MIN_INNER}" if group % MIN_INNER else None


def tiles_of(M: int, D: int, F: int, group: int) -> MatmulTiles:
    """Choose the sizes of tiles by the shapes alone."""
    if M <= 16:
        tiles = MatmulTiles(rows=16, columns=128, inner=math.gcd(128, group), num_warps=4, num_stages=4)
    elif M <= 64:
        tiles = MatmulTiles(rows=64, columns=128, inner=math.gcd(128, group), num_warps=4, num_stages=4)
    else:
        tiles = MatmulTiles(rows=128, columns=128, inner=math.gcd(64, group), num_warps=8, num_stages=4)
    return tiles.in_parts(M, D, F)


def _multiply_tile(
    rows_ref: jax.Array,
    row_scales_ref: jax.Array,
    matrix_ref: jax.Array,
    scales_ref: jax.Array,
    out_ref: jax.Array,
    *,
    tiles: MatmulTiles,
    group: int,
) -> None:
    """Run program (i, j, k): columns j of rows i, part k of D. rows_ref [M, D], row_scales_ref [G, M], matrix_ref [F,
    D], scales_ref [G, F], out_ref [parts, M, F]."""
    (M, D), F, part = rows_ref.shape, matrix_ref.shape[0], pl.program_id(2)
    row = pl.program_id(0) * tiles.rows + lax.iota(jnp.int32, tiles.rows)
    column = pl.program_id(1) * tiles.columns + lax.iota(jnp.int32, tiles.columns)
    # Beyond the end the last row and the last column are read, and never written: cheaper than a mask in the loop.
    read_row, read_column = jnp.minimum(row, M - 1), jnp.minimum(column, F - 1)
    num_steps = pl.cdiv(D, tiles.inner)

    def step(index: jax.Array, sums: jax.Array) -> jax.Array:
        inner = index * tiles.inner + lax.iota(jnp.int32, tiles.inner)
        number = lax.div(index * tiles.inner, jnp.int32(group)) + jnp.zeros(1, jnp.int32)

        def side(ref: jax.Array, which: jax.Array) -> jax.Array:
            shape = (which.shape[0], tiles.inner)
            mask = jnp.broadcast_to((inner < D)[None, :], shape) if D % tiles.inner else None
            return load(ref, (which[:, None], inner[None, :]), mask).astype(jnp.float16)

        of_rows = load(row_scales_ref, (number, read_row), None)
        of_columns = load(scales_ref, (number, read_column), None)
        products = matmul_tile(side(rows_ref, read_row), side(matrix_ref, read_column), None, transpose=True)
        return sums + products * (of_rows[:, None] * of_columns[None, :])

    per_part = pl.cdiv(num_steps, tiles.parts)
    first_step = part * jnp.int32(per_part)
    last_step = jnp.minimum(first_step + per_part, num_steps)
    shape = (tiles.rows, tiles.columns)
    sums = lax.fori_loop(first_step, last_step, step, jnp.zeros(shape, jnp.float32))
    mask = jnp.broadcast_to((row < M)[:, None] & (column < F)[None, :], shape)
    store(out_ref, (part, row[:, None], column[None, :]), sums, mask)
