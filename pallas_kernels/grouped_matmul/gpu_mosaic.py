"""The backend for Hopper GPUs and groups of many rows: the copy engine brings tiles, and products are asynchronous.

A block of threads computes one tile of one group's rows. One warpgroup fetches the inputs of the next products into a
ring of buffers; two others, each with 64 of the rows, multiply.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.grouped_matmul.config import MosaicTiles
from palladio.pallas_kernels.grouped_matmul.row_tiles import plan_tiles_on_gpu
from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.mosaic import WARPGROUP_ROWS
from palladio.pallas_kernels.target import Target

ALIGNMENT = 64  # columns of a buffer that the copy engine fills at once
MIN_ROWS = 64  # of a usual group: with fewer, most of a product would be padding


def matmul(
    rows: jax.Array, matrices: jax.Array, group_sizes: jax.Array, target: Target, scales: Scales | None = None
) -> jax.Array:
    """Multiply rows [M, D], matrices [E, D, F], group_sizes i32[E] → [M, F].

    Raises:
        NotImplementedError: the target is no Hopper GPU, or the kernel does not support the sizes or the dtype.
    """
    (M, D), (E, _, F) = rows.shape, matrices.shape
    if (reason := mosaic.refusal(target)) is not None:
        raise NotImplementedError(reason)
    if scales is not None:
        raise NotImplementedError("it multiplies no matrices with scales")
    if rows.dtype != jnp.bfloat16:
        raise NotImplementedError(f"it computes in bfloat16, not {rows.dtype}")
    if D % ALIGNMENT or F % ALIGNMENT:
        raise NotImplementedError(f"matrices of {D}×{F} are not multiples of {ALIGNMENT}")
    if M < MIN_ROWS * E:
        raise NotImplementedError(f"{M} rows in {E} groups are fewer than {MIN_ROWS} a group")
    tiles = MosaicTiles.of(F)
    plan = plan_tiles_on_gpu(group_sizes, M, tiles.rows, target)
    out: jax.Array = plgpu.kernel(
        functools.partial(_multiply_tile, tiles=tiles),
        out_type=jax.ShapeDtypeStruct((M, F), rows.dtype),
        scratch_types=_buffers(tiles),
        grid=(plan.group.shape[0], F // tiles.columns),  # columns side by side: they share rows, and the group's matrix
        grid_names=("tile", "column"),
        num_threads=tiles.warpgroups + 1,
        thread_name="warpgroup",
        kernel_name="grouped_matmul_mosaic",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=mosaic.interpreter(target, tiles.warpgroups + 1),
    )(rows, matrices, *plan)
    return out


def _buffers(tiles: MosaicTiles) -> dict[str, Any]:
    """Return the buffer arguments of _multiply_tile."""

    def swizzled(*shape: int) -> Any:
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=mosaic.SWIZZLED)

    return {
        "left": swizzled(tiles.stages, tiles.rows, tiles.inner),
        "right": swizzled(tiles.stages, tiles.inner, tiles.columns),
        "result": plgpu.SMEM((tiles.warpgroups, WARPGROUP_ROWS, tiles.columns), jnp.bfloat16),
        "there": plgpu.Barrier(num_arrivals=2, num_barriers=tiles.stages),
        "free": plgpu.Barrier(num_arrivals=tiles.warpgroups, num_barriers=tiles.stages),
    }


def _multiply_tile(
    rows_ref: Any,
    matrices_ref: Any,
    group_ref: Any,
    first_ref: Any,
    count_ref: Any,
    out_ref: Any,
    *,
    left: Any,
    right: Any,
    result: Any,
    there: Any,
    free: Any,
    tiles: MosaicTiles,
) -> None:
    """Compute block (i, j): columns j of tile i. rows_ref [M, D], matrices_ref [E, D, F], out_ref [M, F]."""
    (M, D), stages = rows_ref.shape, jnp.int32(tiles.stages)
    tile, warpgroup = lax.axis_index("tile"), lax.axis_index("warpgroup")
    first, count, group = first_ref[tile], count_ref[tile], group_ref[tile]
    columns = pl.ds(lax.axis_index("column") * tiles.columns, tiles.columns)
    num_steps = jnp.where(count > 0, jnp.int32(D // tiles.inner), 0)

    def fetch(step: jax.Array) -> None:
        slot, inner = lax.rem(step, stages), pl.ds(step * tiles.inner, tiles.inner)
        plgpu.copy_gmem_to_smem(rows_ref.at[pl.ds(first, tiles.rows), inner], left.at[slot], there.at[slot])
        plgpu.copy_gmem_to_smem(matrices_ref.at[group, inner, columns], right.at[slot], there.at[slot])

    def multiply(sums: Any) -> Any:
        offset = warpgroup * WARPGROUP_ROWS

        def step_of(step: jax.Array) -> None:
            slot = lax.rem(step, stages)
            plgpu.barrier_wait(there.at[slot])
            plgpu.wgmma(sums, left.at[slot, pl.ds(offset, WARPGROUP_ROWS)], right.at[slot])
            plgpu.wgmma_wait(1)  # the product before this one has ended
            pl.when(step > 0)(lambda: plgpu.barrier_arrive(free.at[lax.rem(step - 1, stages)]))

        pl.loop(0, num_steps)(step_of)
        return sums[...]

    def compute() -> None:
        plgpu.set_max_registers(mosaic.COMPUTE_REGISTERS, action="increase")
        sums = pl.run_scoped(multiply, plgpu.ACC((WARPGROUP_ROWS, tiles.columns), jnp.float32))
        pl.when(num_steps > 0)(lambda: plgpu.barrier_arrive(free.at[lax.rem(num_steps - 1, stages)]))
        mine = result.at[warpgroup]
        mosaic.store_rows(mine, sums.astype(mine.dtype))
        plgpu.commit_smem()
        offset = warpgroup * WARPGROUP_ROWS
        # A tile of no group writes zeros into all of its rows.
        limit = jnp.where(count > 0, count, jnp.clip(M - first, 0, tiles.rows))

        def into(row: jax.Array | int, size: int) -> Any:
            return out_ref.at[pl.ds(first + offset + row, size), columns]

        mosaic.copy_out(mine, into, jnp.clip(limit - offset, 0, WARPGROUP_ROWS))

    pl.when(warpgroup < tiles.warpgroups)(compute)
    pl.when(warpgroup == tiles.warpgroups)(functools.partial(mosaic.fetch_all, num_steps, stages, fetch, free))
