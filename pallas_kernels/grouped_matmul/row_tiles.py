"""Division of rows of groups into tiles: by XLA, or by one kernel for GPUs, which replaces a chain of four."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import load, store

_COMPARISONS = 4096  # of tiles with groups, that a program holds in registers


class RowTiles(NamedTuple):
    """Rows cut into tiles of one group each, and after them tiles of rows of no group.

    Attributes:
        group: i32[I], group of each tile.
        first: i32[I], its first row.
        num_rows: i32[I], its rows; 0 for rows of no group, or beyond all rows.
    """

    group: jax.Array
    first: jax.Array
    num_rows: jax.Array


def plan_tiles(group_sizes: jax.Array, num_rows: int, tile: int) -> RowTiles:
    """Cut group_sizes i32[E] into ceil(M / tile) + min(E, M) tiles: M rows are of M groups at most. All products of a
    layer with the same groups share them."""
    E = group_sizes.shape[0]
    parts = -(-group_sizes // tile)
    ends = jnp.cumsum(parts)
    number = jnp.arange(_num_tiles(group_sizes, num_rows, tile))
    # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
    group = jnp.minimum(jnp.searchsorted(ends, number, side="right", method="compare_all"), E - 1)
    rows_before = jnp.cumsum(group_sizes) - group_sizes
    offset = (number - (ends - parts)[group]) * tile
    real = number < ends[-1]
    first = jnp.where(real, rows_before[group] + offset, group_sizes.sum() + (number - ends[-1]) * tile)
    count = jnp.where(real, jnp.minimum(group_sizes[group] - offset, tile), 0)
    return RowTiles(*(x.astype(jnp.int32) for x in (group, first, count)))


def plan_tiles_on_gpu(group_sizes: jax.Array, num_rows: int, tile: int, target: Target) -> RowTiles:
    """Cut rows as `plan_tiles`, by way of Triton.

    Args:
        target: a target that runs its kernels.
    """
    if group_sizes.shape[0] == 1:  # of one size, mostly: XLA knows it ahead
        return plan_tiles(group_sizes, num_rows, tile)
    num_tiles = _num_tiles(group_sizes, num_rows, tile)
    of_program = max(1, min(32, _COMPARISONS // _up(group_sizes.shape[0])))
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    plan: list[jax.Array] = pl.pallas_call(
        functools.partial(_plan, of_program=of_program, tile=tile),
        grid=(pl.cdiv(num_tiles, of_program),),
        in_specs=[anywhere],
        out_specs=[anywhere] * 3,
        out_shape=[jax.ShapeDtypeStruct((num_tiles,), jnp.int32)] * 3,
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=1),
        interpret=target.interpret is not None,
        name="plan_row_tiles",
    )(group_sizes.astype(jnp.int32))
    return RowTiles(*plan)


def _num_tiles(group_sizes: jax.Array, num_rows: int, tile: int) -> int:
    return -(-num_rows // tile) + min(group_sizes.shape[0], num_rows)


def _up(number: int) -> int:
    """Return the next power of two: Triton has no other sizes."""
    return 1 << (number - 1).bit_length()


def _plan(
    sizes_ref: jax.Array,
    group_ref: jax.Array,
    first_ref: jax.Array,
    count_ref: jax.Array,
    *,
    of_program: int,
    tile: int,
) -> None:
    """Run program i: tiles from i·of_program on. Refs: i32[E], and the i32[I] arrays of RowTiles."""
    E = sizes_ref.shape[0]
    groups = lax.iota(jnp.int32, _up(E))
    sizes = load(sizes_ref, (groups,), groups < E)
    parts = (sizes + tile - 1) // tile
    ends, rows_before = lax.cumsum(parts, axis=0), lax.cumsum(sizes, axis=0) - sizes
    num_real, num_rows = jnp.sum(parts), jnp.sum(sizes)
    number = pl.program_id(0) * of_program + lax.iota(jnp.int32, of_program)
    group = jnp.minimum(jnp.sum((ends[None, :] <= number[:, None]).astype(jnp.int32), axis=1), E - 1)
    is_own = groups[None, :] == group[:, None]

    def own(numbers: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(is_own, numbers[None, :], 0), axis=1)

    offset, real = (number - own(ends - parts)) * tile, number < num_real
    first = jnp.where(real, own(rows_before) + offset, num_rows + (number - num_real) * tile)
    count = jnp.where(real, jnp.minimum(own(sizes) - offset, tile), 0)
    for ref, values in ((group_ref, group), (first_ref, first), (count_ref, count)):
        store(ref, (number,), values, number < ref.shape[0])
