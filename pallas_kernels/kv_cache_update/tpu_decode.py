"""The TPU kernel of a decode step: single rows, each in a page of its own.

A row is less than the smallest piece that a TPU moves, so the tile around it is read, changed and written back. A tile
is small and memory is far away: so the tiles of a whole block of tokens are copied at once, while the blocks before and
after it are changed and written.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.kv_cache_update.tpu_copies import NUM_BUFFERS, Act, BlockCopies
from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode

Ref = Any
BLOCK = 16  # tokens at once
_MAX_BYTES = 4 * 2**20  # of them: the rest of vector memory is left to what the compiler prefetches


def update_rows(kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, target: Target, *, tile: int) -> jax.Array:
    """Write rows: kv_pages [P, K, S, 2·Hp], rows [T, K, 2·Hp] of a dtype that a select takes → [P, K, S, 2·Hp].

    Args:
        writes: writes of one row each, no two on the same page.
        tile: rows of a native tile.
    """
    _, K, _, W = kv_pages.shape
    heads = _heads_at_once(K, BLOCK * tile * W * kv_pages.dtype.itemsize)
    padding = -rows.shape[0] % BLOCK
    tokens = jnp.pad(rows.transpose(1, 0, 2), ((0, 0), (0, padding), (0, 0)))
    page_ids, offsets = (jnp.pad(values, (0, padding)) for values in (writes.page_ids, writes.page_offsets))
    num_parts = K // heads
    moved = rows.shape[0] * K * W
    call = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(tokens.shape[1] // BLOCK * num_parts,),
            in_specs=[
                pl.BlockSpec((heads, BLOCK, W), lambda i, *_: (lax.rem(i, num_parts), lax.div(i, num_parts), 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((NUM_BUFFERS, BLOCK, heads, tile, W), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((NUM_BUFFERS,)),
                pltpu.SemaphoreType.DMA((NUM_BUFFERS,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
        input_output_aliases={3: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=pl.CostEstimate(
            flops=0,
            bytes_accessed=moved * (2 * tile * kv_pages.dtype.itemsize + tokens.dtype.itemsize),
            transcendentals=0,
        ),
        interpret=interpret_mode(target),
        name=f"kv_cache_update_rows_{tile}",
    )
    updated: jax.Array = call(page_ids, offsets, tokens, hbm(kv_pages, target))
    return updated


def _heads_at_once(num_heads: int, bytes_of_one: int) -> int:
    """Return the most kv heads, a divisor of all, whose buffers are small enough.

    Args:
        bytes_of_one: bytes of one head in one buffer.
    """
    fitting = max(_MAX_BYTES // (NUM_BUFFERS * bytes_of_one), 1)
    return max(heads for heads in range(1, num_heads + 1) if num_heads % heads == 0 and heads <= fitting)


def _kernel(
    page_ids: Ref,
    offsets: Ref,
    tokens: Ref,
    _: Ref,
    pages: Ref,
    tiles: Ref,
    read: Ref,
    written: Ref,
) -> None:
    """Write one block. Scalars: see CacheWrites; tokens [heads, BLOCK, W]; pages [P, K, S, W] in HBM; tiles [buffers,
    BLOCK, heads, tile, W]; read and written: semaphores of the buffers."""
    _, _, heads, tile, width = tiles.shape
    num_parts = pages.shape[1] // heads
    step, num_steps = pl.program_id(0), pl.num_programs(0)
    this = lax.rem(step, NUM_BUFFERS)

    def each_copy(is_read: bool, act: Act, of_step: jax.Array) -> None:
        """Start or await the copies of a step, between the cache and its buffer."""
        buffer, part = lax.rem(of_step, NUM_BUFFERS), lax.rem(of_step, num_parts)

        def copy_one(i: jax.Array, _: None) -> None:
            token = lax.div(of_step, num_parts) * BLOCK + i

            def copy() -> None:
                first = pl.multiple_of(lax.div(offsets[token], tile) * tile, tile)
                place = pages.at[page_ids[token], pl.ds(part * heads, heads), pl.ds(first, tile)]
                held = tiles.at[buffer, i]
                ends, semaphore = ((place, held), read) if is_read else ((held, place), written)
                one = pltpu.make_async_copy(*ends, semaphore.at[buffer])
                one.start() if act == "start" else one.wait()

            pl.when(page_ids[token] != 0)(copy)

        lax.fori_loop(0, BLOCK, copy_one, None)

    blocks = BlockCopies(functools.partial(each_copy, True), functools.partial(each_copy, False))
    blocks.begin(step, num_steps)
    row_ids = lax.broadcasted_iota(jnp.int32, (tile, width), 0)
    first_token = lax.div(step, num_parts) * BLOCK
    rows = [lax.rem(offsets[first_token + i], tile) for i in range(BLOCK)]

    def change(head: jax.Array, _: None) -> None:
        values = tokens[head].astype(jnp.float32)
        for i, row in enumerate(rows):
            before = tiles[this, i, head]
            after = jnp.where(row_ids == row, values[i : i + 1], before.astype(jnp.float32))
            tiles[this, i, head] = after.astype(before.dtype)

    lax.fori_loop(0, heads, change, None)
    blocks.end(step, num_steps)
