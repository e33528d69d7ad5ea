"""The backend for GPUs: a Pallas kernel by way of Triton, in which each tile of rows reads the one matrix it needs."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.grouped_matmul.config import MatmulTiles
from palladio.pallas_kernels.grouped_matmul.row_tiles import plan_tiles_on_gpu
from palladio.pallas_kernels.grouped_matmul.scales import Scales, unpacked
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import DTYPES, Precision, load, product_precision, refusal, store
from palladio.pallas_kernels.triton import matmul as matmul_tile

MIN_INNER = 16  # of a product on the tensor cores


def matmul(
    rows: jax.Array,
    matrices: jax.Array,
    group_sizes: jax.Array,
    target: Target,
    scales: Scales | None = None,
    tiles: MatmulTiles | None = None,
) -> jax.Array:
    """Multiply rows [M, D], matrices [E, D, F], group_sizes i32[E] → [M, F].

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more, or the dtype is not supported.
    """
    if (reason := refusal(target)) is not None:
        raise NotImplementedError(reason)
    if rows.dtype.name not in DTYPES:
        raise NotImplementedError(f"it computes in {', '.join(DTYPES)}, not {rows.dtype}")
    M, D = rows.shape
    E, _, F = matrices.shape
    chooses = tiles is None
    tiles = tiles or MatmulTiles.of(rows, matrices)
    factors: tuple[jax.Array, ...] = ()
    if scales is not None:
        if scales.group < D:
            if scales.group % MIN_INNER:
                raise NotImplementedError(f"groups of {scales.group} are no multiple of {MIN_INNER}")
            tiles = dataclasses.replace(tiles, inner=math.gcd(tiles.inner, scales.group))
        factors = tuple(array.reshape(-1, F) for array in scales.arrays)
        if E == 1 and chooses:
            tiles = tiles.in_parts(M, D, F)
    plan = plan_tiles_on_gpu(group_sizes, M, tiles.rows, target)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out: jax.Array = pl.pallas_call(
        functools.partial(
            _multiply_tile,
            tiles=tiles,
            group_size=None if scales is None else min(scales.group, D),
            is_float4=scales is not None and scales.is_float4,
            precision=product_precision(rows.dtype, target),
        ),
        # Tiles of one group follow each other with the same columns, so the matrix is read from memory once.
        grid=(plan.group.shape[0], pl.cdiv(F, tiles.columns), tiles.parts),
        in_specs=[anywhere] * (5 + len(factors)),
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct((tiles.parts, M, F), rows.dtype if tiles.parts == 1 else jnp.float32),
        compiler_params=pltriton.CompilerParams(num_warps=tiles.num_warps, num_stages=tiles.num_stages),
        interpret=target.interpret is not None,
        name="grouped_matmul",
    )(rows, matrices.reshape(E * D, F), *plan, *factors)
    return out[0] if tiles.parts == 1 else out.sum(axis=0).astype(rows.dtype)


def _multiply_tile(
    rows_ref: jax.Array,
    matrices_ref: jax.Array,
    group_ref: jax.Array,
    first_ref: jax.Array,
    count_ref: jax.Array,
    *refs: jax.Array,
    tiles: MatmulTiles,
    group_size: int | None,
    is_float4: bool,
    precision: Precision,
) -> None:
    """Run program (i, j, k): columns j of tile i, part k of D. rows_ref [M, D], matrices_ref [E·D, F]; refs: scales and
    zeros, if there are any, [E·G, F], and the parts' results, [parts, M, F]. group_size: rows of a matrix that share a
    scale."""
    *factors_refs, out_ref = refs
    (M, D), F = rows_ref.shape, matrices_ref.shape[1]
    tile, part = pl.program_id(0), pl.program_id(2)
    group, first, count = group_ref[tile], first_ref[tile], count_ref[tile]
    column = pl.program_id(1) * tiles.columns + lax.iota(jnp.int32, tiles.columns)
    row = lax.iota(jnp.int32, tiles.rows)
    # Rows beyond the end are read as the last one and never written, which is cheaper than a mask in the loop. Columns
    # must stay consecutive: only then does a thread load several at once.
    read_row = jnp.minimum(first + jnp.minimum(row, jnp.maximum(count, 1) - 1), M - 1)
    columns_inside = column < F if F % tiles.columns else None

    def step(index: jax.Array, sums: jax.Array) -> jax.Array:
        inner = index * tiles.inner + lax.iota(jnp.int32, tiles.inner)
        inside = inner < D if D % tiles.inner else None
        left = _load(rows_ref, read_row, inner, None, inside)
        right = _load(matrices_ref, group * D + inner, column, inside, columns_inside)
        has_groups = group_size is not None and group_size < D
        number = lax.div(index * tiles.inner, jnp.int32(group_size)) if has_groups else 0
        if is_float4 or len(factors_refs) > 1:
            right = unpacked(right, is_float4=is_float4)
        for zeros_ref in factors_refs[1:]:
            right -= of_group(zeros_ref, number)
        products = matmul_tile(left, right.astype(left.dtype), precision)
        return sums + (products * of_group(factors_refs[0], number) if has_groups else products)

    def of_group(ref: jax.Array, number: jax.Array | int) -> jax.Array:
        """Load the scales or zeros f32[1, columns] of one group of the matrix's rows."""
        row = group * pl.cdiv(D, group_size or D) + number + lax.iota(jnp.int32, 1)
        return _load(ref, row, column, None, columns_inside)

    shape = (tiles.rows, tiles.columns)

    def multiply() -> None:
        steps = jnp.where(count > 0, jnp.int32(pl.cdiv(D, tiles.inner)), jnp.int32(0))
        first_step = part * jnp.int32(pl.cdiv(pl.cdiv(D, tiles.inner), tiles.parts))
        last_step = jnp.minimum(first_step + pl.cdiv(pl.cdiv(D, tiles.inner), tiles.parts), steps)
        sums = lax.fori_loop(first_step, last_step, step, jnp.zeros(shape, jnp.float32))
        if group_size == D:
            sums *= of_group(factors_refs[0], 0)
        # A tile of no group writes zeros into all of its rows.
        limit = jnp.where(count > 0, count, jnp.minimum(M - first, tiles.rows))
        mask = jnp.broadcast_to((row < limit)[:, None] & (column < F)[None, :], shape)
        store(out_ref, (part, (first + row)[:, None], column[None, :]), sums, mask)

    pl.when(first < M)(multiply)


def _load(
    ref: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    rows_inside: jax.Array | None,
    columns_inside: jax.Array | None,
) -> jax.Array:
    """Load [R, C] of ref, 0 in rows and columns that are not inside; None: all are."""
    shape = (rows.shape[0], columns.shape[0])
    mask: jax.Array | None = None
    if rows_inside is not None:
        mask = jnp.broadcast_to(rows_inside[:, None], shape)
    if columns_inside is not None:
        of_columns = jnp.broadcast_to(columns_inside[None, :], shape)
        mask = of_columns if mask is None else mask & of_columns
    return load(ref, (rows[:, None], columns[None, :]), mask)
