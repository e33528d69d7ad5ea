"""The backend for Hopper GPUs and many rows: products of float8 and float8 on the tensor cores (wgmma).

A block of threads computes one tile. One warpgroup fetches the inputs of the next products into a ring of buffers; two
others, each with 64 of the rows, multiply: group of inputs by group. Each multiplies the group's sums with both factors
and adds them up in float32, while the other's products run.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.mosaic import WARPGROUP_ROWS
from palladio.pallas_kernels.target import Target

GROUP = 128  # bytes of a row that the tensor cores' buffers hold side by side
MIN_ROWS = 64  # with fewer, most of a product would be padding
WARPGROUPS, STAGES = 2, 4
ALIGNMENT = 64  # columns of a tile, at least
SWIZZLED = (plgpu.TilingTransform((8, GROUP)), plgpu.SwizzleTransform(GROUP))
ROWS = WARPGROUPS * WARPGROUP_ROWS


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
        NotImplementedError: the target is no Hopper GPU, or the kernel does not support the sizes or the dtype.
    """
    (M, D), F = rows.shape, matrix.shape[0]
    if (reason := mosaic.refusal(target)) is not None:
        raise NotImplementedError(reason)
    if group != GROUP or D % GROUP or F % ALIGNMENT:
        raise NotImplementedError(
            f"groups of {group} of a matrix of {D}×{F}: they are {GROUP}, and it divides into {GROUP}×{ALIGNMENT}"
        )
    if out_dtype != jnp.bfloat16:
        raise NotImplementedError(f"its results are bfloat16, not {out_dtype}")
    if M < MIN_ROWS:
        raise NotImplementedError(f"{M} rows are fewer than {MIN_ROWS}")
    columns = 128 if F % 128 == 0 else ALIGNMENT
    padded = jnp.pad(row_scales, ((0, 0), (0, -M % ROWS)))
    out: jax.Array = plgpu.kernel(
        functools.partial(_multiply_tile, columns=columns),
        out_type=jax.ShapeDtypeStruct((M, F), out_dtype),
        scratch_types=_buffers(columns),
        grid=(F // columns, -(-M // ROWS)),  # rows side by side: they share a part of the matrix, which is read once
        grid_names=("column", "tile"),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        kernel_name="block_matmul_mosaic",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=mosaic.interpreter(target, WARPGROUPS + 1),
    )(rows, padded, matrix, scales)
    return out


def _buffers(columns: int) -> dict[str, Any]:
    """Return the buffer arguments of _multiply_tile."""

    def swizzled(size: int) -> Any:
        return plgpu.SMEM((STAGES, size, GROUP), jnp.float8_e4m3fn, transforms=SWIZZLED)

    return {
        "left": swizzled(ROWS),
        "right": swizzled(columns),
        "of_rows": plgpu.SMEM((STAGES, ROWS), jnp.float32),
        "of_columns": plgpu.SMEM((STAGES, columns), jnp.float32),
        "result": plgpu.SMEM((WARPGROUPS, WARPGROUP_ROWS, columns), jnp.bfloat16),
        "there": plgpu.Barrier(num_arrivals=4, num_barriers=STAGES),
        "free": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
    }


def _multiply_tile(
    rows_ref: Any,
    row_scales_ref: Any,
    matrix_ref: Any,
    scales_ref: Any,
    out_ref: Any,
    *,
    left: Any,
    right: Any,
    of_rows: Any,
    of_columns: Any,
    result: Any,
    there: Any,
    free: Any,
    columns: int,
) -> None:
    """Compute block (j, i): columns j of tile i. rows_ref [M, D], row_scales_ref [G, M], matrix_ref [F, D], scales_ref
    [G, F], out_ref [M, F]."""
    M, stages, num_steps = rows_ref.shape[0], jnp.int32(STAGES), jnp.int32(rows_ref.shape[1] // GROUP)
    warpgroup, first = lax.axis_index("warpgroup"), lax.axis_index("tile") * ROWS
    own_rows, own_columns = pl.ds(first, ROWS), pl.ds(lax.axis_index("column") * columns, columns)

    def fetch(step: jax.Array) -> None:
        slot, inner = lax.rem(step, stages), pl.ds(step * GROUP, GROUP)
        for source, buffer in (
            (rows_ref.at[own_rows, inner], left),
            (matrix_ref.at[own_columns, inner], right),
            (row_scales_ref.at[step, own_rows], of_rows),
            (scales_ref.at[step, own_columns], of_columns),
        ):
            plgpu.copy_gmem_to_smem(source, buffer.at[slot], there.at[slot])

    def compute() -> None:
        plgpu.set_max_registers(mosaic.COMPUTE_REGISTERS, action="increase")
        offset, shape = warpgroup * WARPGROUP_ROWS, (WARPGROUP_ROWS, columns)
        mine = pl.ds(offset, WARPGROUP_ROWS)

        def add_group(step: jax.Array, sums: jax.Array) -> jax.Array:
            slot = lax.rem(step, stages)
            plgpu.barrier_wait(there.at[slot])

            def multiply(products: Any) -> Any:
                plgpu.wgmma(products, left.at[slot, mine], mosaic.transposed(right.at[slot]))
                return products[...]

            by_row = mosaic.load(of_rows.at[slot, mine], plgpu.Layout.WGMMA.reduce(1))
            by_column = mosaic.load(of_columns.at[slot], plgpu.Layout.WGMMA.reduce(0))
            products = pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))
            plgpu.commit_smem()  # the factors have been read before the copy engine overwrites them
            plgpu.barrier_arrive(free.at[slot])
            factors = lax.broadcast_in_dim(by_row, shape, (0,)) * lax.broadcast_in_dim(by_column, shape, (1,))
            added: jax.Array = sums + products * factors
            return added

        zeros = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)
        sums = lax.fori_loop(0, num_steps, add_group, zeros)
        tile = result.at[warpgroup]
        mosaic.store_rows(tile, sums.astype(tile.dtype))
        plgpu.commit_smem()

        def into(row: jax.Array | int, size: int) -> Any:
            return out_ref.at[pl.ds(first + offset + row, size), own_columns]

        mosaic.copy_out(tile, into, jnp.clip(M - first - offset, 0, WARPGROUP_ROWS))

    pl.when(warpgroup < WARPGROUPS)(compute)
    pl.when(warpgroup == WARPGROUPS)(functools.partial(mosaic.fetch_all, num_steps, stages, fetch, free))
