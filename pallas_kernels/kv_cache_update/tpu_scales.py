"""The TPU backend of the scales of an int8 cache: each page's scales are read, some lanes changed, and written back.

XLA lays out the new lanes before the kernel: one array for each page that the step writes. tpu_decode describes the
order of the copies.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.kv_cache_update.tpu_copies import NUM_BUFFERS, Act, BlockCopies
from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites, plan_runs
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require

Ref = Any
BLOCK = 16  # runs at once


def update(page_scales: jax.Array, scales: jax.Array, page_size: int, writes: CacheWrites, target: Target) -> jax.Array:
    """Write scales: page_scales f32[P, R, C·S], scales f32[T, 2·K] → f32[P, R, C·S].

    Raises:
        NotImplementedError: the target is no TPU.
    """
    require(target)
    page, row, count, tiles = _tiles(page_scales.shape, scales, page_size, writes)
    padding = -page.shape[0] % BLOCK
    page, row, count = (jnp.pad(values, (0, padding)) for values in (page, row, count))
    tiles = jnp.pad(tiles, ((0, padding), (0, 0), (0, 0)))
    tile = page_scales.shape[1:]
    num_runs = (page != 0).sum(dtype=jnp.int32) if not writes.one_each else jnp.int32(page.shape[0])
    call = pl.pallas_call(
        functools.partial(_kernel, page_size=page_size),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(lax.div(num_runs + (BLOCK - 1), BLOCK),),
            in_specs=[pl.BlockSpec((BLOCK, *tile), lambda i, *_: (i, 0, 0)), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((NUM_BUFFERS, BLOCK, *tile), jnp.float32),
                pltpu.SemaphoreType.DMA((NUM_BUFFERS,)),
                pltpu.SemaphoreType.DMA((NUM_BUFFERS,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(page_scales.shape, jnp.float32),
        input_output_aliases={4: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=pl.CostEstimate(flops=0, bytes_accessed=12 * tiles.size, transcendentals=0),
        interpret=interpret_mode(target),
        name="kv_cache_update_scales",
    )
    updated: jax.Array = call(page, row, count, tiles, hbm(page_scales, target))
    return updated


def _tiles(
    shape: tuple[int, ...], scales: jax.Array, page_size: int, writes: CacheWrites
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return for each run of rows its page (0: there is none), its first row, its number of rows, and f32[R, C·S] with
    the new numbers in the lanes of its rows."""
    _, R, L = shape
    runs = L // page_size
    if writes.one_each:
        page, row, count = writes.page_ids, writes.page_offsets, jnp.ones_like(writes.page_ids)
        by_row = jnp.broadcast_to(scales[:, :, None], (*scales.shape, page_size))
    else:
        plan = writes.runs or plan_runs(writes)
        real = jnp.arange(plan.page.shape[0]) < plan.num_runs[0]
        page, row, count = jnp.where(real, plan.page, 0), plan.row, plan.count
        token = plan.token[:, None] + jnp.arange(page_size) - row[:, None]  # of each row of the page
        by_row = scales.at[token].get(mode="clip").swapaxes(1, 2)  # [runs, 2·K, S]
    by_row = jnp.pad(by_row, ((0, 0), (0, runs * R - by_row.shape[1]), (0, 0)))
    tiles = by_row.reshape(-1, runs, R, page_size).swapaxes(1, 2).reshape(-1, R, L)
    return page, row, count, tiles


def _kernel(
    page_ids: Ref,
    first_rows: Ref,
    counts: Ref,
    new: Ref,
    _: Ref,
    page_scales: Ref,
    tiles: Ref,
    read: Ref,
    written: Ref,
    *,
    page_size: int,
) -> None:
    """Write one block. Scalars: see _tiles; new f32[BLOCK, R, C·S]; page_scales f32[P, R, C·S] in HBM; tiles
    f32[buffers, BLOCK, R, C·S]; read and written: semaphores of the buffers."""
    step, num_steps = pl.program_id(0), pl.num_programs(0)
    this = lax.rem(step, NUM_BUFFERS)

    def each_copy(is_read: bool, act: Act, of_step: jax.Array) -> None:
        buffer = lax.rem(of_step, NUM_BUFFERS)

        def copy_one(i: jax.Array, _: None) -> None:
            run = of_step * BLOCK + i

            def copy() -> None:
                place, held = page_scales.at[page_ids[run]], tiles.at[buffer, i]
                ends, semaphore = ((place, held), read) if is_read else ((held, place), written)
                one = pltpu.make_async_copy(*ends, semaphore.at[buffer])
                one.start() if act == "start" else one.wait()

            pl.when(page_ids[run] != 0)(copy)

        lax.fori_loop(0, BLOCK, copy_one, None)

    blocks = BlockCopies(functools.partial(each_copy, True), functools.partial(each_copy, False))
    blocks.begin(step, num_steps)
    row = lax.rem(lax.broadcasted_iota(jnp.int32, new.shape[1:], 1), page_size)
    for i in range(BLOCK):
        first = first_rows[step * BLOCK + i]
        is_new = (row >= first) & (row < first + counts[step * BLOCK + i])
        tiles[this, i] = jnp.where(is_new, new[i], tiles[this, i])
    blocks.end(step, num_steps)
