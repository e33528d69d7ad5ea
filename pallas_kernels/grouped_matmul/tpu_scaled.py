"""The TPU backend, for matrices of 4-bit and 8-bit numbers with scales, widened block by block in vector memory.

Matrices without scales are left to XLA, which has a kernel for them.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from palladio.pallas_kernels.grouped_matmul.row_tiles import RowTiles, plan_tiles
from palladio.pallas_kernels.grouped_matmul.scales import Scales, unpacked
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require

LANES = 128
MAX_ROWS = 256  # of a tile
MAX_COLUMNS = 1024
MAX_INNER = 1024  # rows of a matrix at a time, where one scale is of all of them
MIN_GROUP = 8
STEP_INNER = 1024  # rows of a matrix that a step of the grid brings and multiplies, unit by unit
WIDE_STEP_INNER = 2048  # the same where the matrix comes faster: of 4 bits, and of 8 on 7x
HAS_BFLOAT16 = ("v6e", "7x")  # kinds of TPU that compute elementwise in it


def matmul(
    rows: jax.Array, matrices: jax.Array, group_sizes: jax.Array, target: Target, scales: Scales | None = None
) -> jax.Array:
    """Multiply rows [M, D], matrices [E, D, F], group_sizes i32[E] → [M, F].

    Raises:
        NotImplementedError: the target is no TPU, there are no scales, or groups are no whole blocks.
    """
    require(target)
    if scales is None:
        raise NotImplementedError("matrices without scales are multiplied by XLA's own kernel")
    (M, D), (E, _, F) = rows.shape, matrices.shape
    if D < LANES or F < LANES:
        raise NotImplementedError(f"matrices of {D}×{F} are smaller than a block of {LANES}")
    if scales.group < D and (scales.group < MIN_GROUP or max(LANES, scales.group) % min(LANES, scales.group)):
        raise NotImplementedError(f"groups of {scales.group} are no whole blocks")
    tile = tile_rows(M, E)
    if E == 1:
        plan, tiled = None, jnp.pad(rows, ((0, -M % tile), (0, 0)))
        group = jnp.zeros(tiled.shape[0] // tile, jnp.int32)
        num_tiles: jax.Array | int = group.shape[0]
    else:
        plan = plan_tiles(group_sizes, M, tile)
        tiled = rows[jnp.minimum(plan.first[:, None] + jnp.arange(tile), M - 1).reshape(-1)]
        group, num_tiles = plan.group, jnp.count_nonzero(plan.num_rows).astype(jnp.int32)
    out = _multiply(tiled, matrices, scales, group, num_tiles, tile, target)
    if plan is None:
        return jnp.where(jnp.arange(M)[:, None] < group_sizes, out[:M], 0)
    return _untiled(out, plan, group_sizes, M, tile)


def tile_rows(num_rows: int, num_groups: int) -> int:
    """Choose the rows of a tile: most groups fit in one, because each tile reads its group's matrix.

    With rows at random, the size of a group deviates by the root of the usual one. Groups that take several tiles
    anyway are cut into equal ones: there, products take longer than reading.
    """
    usual = -(-num_rows // num_groups)
    roomy = usual + (2 * math.isqrt(usual) if num_groups > 1 else 0)
    rows = roomy if roomy <= MAX_ROWS else usual
    return -(-rows // (16 * -(-rows // MAX_ROWS))) * 16


def _multiply(
    tiled: jax.Array,
    matrices: jax.Array,
    scales: Scales,
    group: jax.Array,
    num_tiles: jax.Array | int,
    tile: int,
    target: Target,
) -> jax.Array:
    """Multiply tile i of `tiled` with matrix group[i], for the first `num_tiles`; the other tiles' results are
    arbitrary."""
    (_, D), F = tiled.shape, matrices.shape[2]
    unit = _block(D, MAX_INNER) if scales.group >= D else max(LANES, scales.group)
    is_fast = jax.dtypes.itemsize_bits(matrices.dtype) < 8 or target.kind == "7x"
    per_step = _units_of_a_step(pl.cdiv(D, unit), unit, is_fast=is_fast)
    inner, columns = unit * per_step, _block(F, MAX_COLUMNS)
    num_steps, num_groups = pl.cdiv(D, inner), scales.values.shape[1]
    tiled = jnp.pad(tiled, ((0, 0), (0, -D % inner)))
    arrays = (matrices, *scales.arrays)
    if matrices.shape[0] > 1:  # else XLA brings all groups' scales to vector memory, also of groups without rows
        arrays = tuple(hbm(array, target) for array in arrays)

    call = pl.pallas_call(
        functools.partial(
            _kernel,
            group_size=min(scales.group, D),
            size=D,
            unit=unit,
            is_float4=scales.is_float4,
            dtype=jnp.bfloat16 if target.kind in HAS_BFLOAT16 else jnp.float32,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(num_tiles, pl.cdiv(F, columns), num_steps),
            in_specs=[
                pl.BlockSpec((tile, inner), lambda i, j, k, *_: (i, k)),
                pl.BlockSpec((1, inner, columns), lambda i, j, k, group: (group[i], k, j)),
                *[pl.BlockSpec((1, num_groups, columns), lambda i, j, k, group: (group[i], 0, j))] * len(scales.arrays),
            ],
            out_specs=pl.BlockSpec((tile, columns), lambda i, j, k, *_: (i, j)),
            scratch_shapes=[pltpu.VMEM((tile, columns), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((tiled.shape[0], F), tiled.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",) * 3),
        interpret=interpret_mode(target),
        name="scaled_grouped_matmul",
    )
    out: jax.Array = call(group, tiled, *arrays)
    return out


def _kernel(
    group_ref: Any,
    rows_ref: Any,
    matrix_ref: Any,
    scales_ref: Any,
    *refs: Any,
    group_size: int,
    size: int,
    unit: int,
    is_float4: bool,
    dtype: DTypeLike,
) -> None:
    """Compute step k of the sum of block (i, j). refs: zeros, if there are any, the result, and the sums. group_size:
    rows of the matrix that share a scale. size: rows of the matrix; in a last step that reaches beyond it, the columns
    of `rows` are 0, and the matrix is arbitrary. unit: rows of it that are widened at a time. dtype: dtype in which
    small numbers are computed."""
    del group_ref
    *zeros_refs, out_ref, sums_ref = refs
    num_units, per_step = pl.cdiv(size, unit), matrix_ref.shape[1] // unit
    step, num_steps = pl.program_id(2), pl.cdiv(num_units, per_step)

    def clear() -> None:
        sums_ref[...] = jnp.zeros_like(sums_ref)

    def multiply() -> None:
        # One after the other without a loop: while one unit's product is on its way, the next one is widened.
        for index in range(per_step):
            multiply_unit(index, None)

    def multiply_rest() -> None:
        lax.fori_loop(0, num_units % per_step, multiply_unit, None)

    def multiply_unit(index: Any, _: None) -> None:
        place = pl.ds(index * unit if isinstance(index, int) else pl.multiple_of(index * unit, unit), unit)
        number = step * per_step + index
        rows = rows_ref[:, place]
        wide = unpacked(matrix_ref[0, place, :], is_float4=is_float4, dtype=jnp.float32 if zeros_refs else dtype)
        if size % unit and jnp.issubdtype(matrix_ref.dtype, jnp.floating):  # 0 times NaN is not 0
            row = number * unit + lax.broadcasted_iota(jnp.int32, wide.shape, 0)
            wide = jnp.where(row < size, wide, 0.0)
        if group_size >= unit:  # a unit has one scale a column
            scale = lax.div(number * unit, group_size) if group_size < num_units * unit else 0
            for zeros_ref in zeros_refs:
                wide -= zeros_ref[0, pl.ds(scale, 1), :]
            sums_ref[...] += _product(rows, wide.astype(rows.dtype)) * scales_ref[0, pl.ds(scale, 1), :]
            return
        for zeros_ref in zeros_refs:
            wide -= of_rows(zeros_ref, number)
        factors = of_rows(scales_ref, number)
        if is_float4:
            factors = factors.astype(wide.dtype)  # powers of two: exact, and so are the products
        sums_ref[...] += _product(rows, (wide * factors).astype(rows.dtype))

    def of_rows(ref: Any, unit_number: Any) -> jax.Array:
        """Return the group's row for each row of a unit, [unit, columns]."""
        num_groups, shape = unit // group_size, (group_size, matrix_ref.shape[2])
        numbers = (unit_number * num_groups + number for number in range(num_groups))
        if size % unit:
            numbers = (jnp.minimum(number, ref.shape[1] - 1) for number in numbers)
        return jnp.concatenate([jnp.broadcast_to(ref[0, pl.ds(number, 1), :], shape) for number in numbers])

    def write() -> None:
        out_ref[...] = sums_ref[...].astype(out_ref.dtype)

    pl.when(step == 0)(clear)
    if num_units % per_step == 0:
        multiply()
    else:
        pl.when(step < num_steps - 1)(multiply)
        pl.when(step == num_steps - 1)(multiply_rest)
    pl.when(step == num_steps - 1)(write)


def _units_of_a_step(num_units: int, unit: int, *, is_fast: bool) -> int:
    """Choose the units of a grid step. A grid step has some 200 cycles of overhead, and nothing is multiplied while the
    first step's matrix arrives. So steps are as equal as possible; wide ones are exactly equal, since a shorter last
    one is a slower loop."""

    def equal(inner: int) -> int:
        num_steps = -(-num_units // max(1, inner // unit))
        return -(-num_units // num_steps)

    wide = equal(WIDE_STEP_INNER)
    return wide if is_fast and num_units % wide == 0 else equal(STEP_INNER)


def _product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    precision = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
    return lax.dot_general(
        rows, matrix, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def _untiled(out: jax.Array, plan: RowTiles, group_sizes: jax.Array, num_rows: int, tile: int) -> jax.Array:
    """Return rows in their original order, 0 for rows of no group."""
    del plan
    ends = jnp.cumsum(group_sizes)
    parts = -(-group_sizes // tile)
    row = jnp.arange(num_rows)
    group = jnp.minimum(jnp.searchsorted(ends, row, side="right", method="compare_all"), len(group_sizes) - 1)
    tiles_before = jnp.cumsum(parts) - parts
    place = tiles_before[group] * tile + row - (ends - group_sizes)[group]
    is_real = row < ends[-1]
    return jnp.where(is_real[:, None], out[jnp.where(is_real, place, 0)], 0)


def _block(size: int, most: int) -> int:
    """Return the largest multiple of LANES up to `most` that divides `size`. If that is LANES alone, blocks may reach
    beyond the end, by a twelfth."""
    blocks = range(most, LANES, -LANES)
    exact = next((block for block in blocks if size % block == 0), LANES)
    return next((block for block in blocks if 12 * (-size % block) <= size), LANES) if exact == LANES else exact
