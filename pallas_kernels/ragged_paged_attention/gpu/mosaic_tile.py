"""The work of one warpgroup of the Hopper kernel: 64 queries of one head against the buffers that another fills."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.mosaic import WARPGROUP_ROWS
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import MosaicBlocks
from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_tile import LOG2E, LOWEST


class Buffers(NamedTuple):
    """Shared memory of a block, and the barriers of its warpgroups.

    Attributes:
        q: [warpgroups, 64, H].
        keys, values: [stages, C, H].
        out: [warpgroups, 64, H].
        weights: [warpgroups, 64, C], only where products cannot take them from registers (interpreted).
        q_there: a warpgroup's queries have been copied.
        keys_there, values_there: all pages of a stage have been copied.
        keys_free, values_free: all warpgroups are done with a stage.
        cleaned: rows of the last stage beyond the request's end have been cleared.
    """

    q: Any
    keys: Any
    values: Any
    out: Any
    q_there: Any
    keys_there: Any
    values_there: Any
    keys_free: Any
    values_free: Any
    cleaned: Any
    weights: Any = None


class Softmax(NamedTuple):
    """The online softmax of triton_tile, in the layout of the tensor cores: output f32[64, H], peak and total
    f32[64]."""

    output: jax.Array
    peak: jax.Array
    total: jax.Array


class Block(NamedTuple):
    """The work of a block of threads.

    Attributes:
        head: query head.
        request, position, first_token: see BlockPlan.
        num_tokens: its count, or the padding tokens to clear.
        end: keys of the request up to the last query.
        first_step, num_steps: blocks of keys; 0 steps for padding.
    """

    head: jax.Array
    request: jax.Array
    position: jax.Array
    first_token: jax.Array
    num_tokens: jax.Array
    end: jax.Array
    first_step: jax.Array
    num_steps: jax.Array


class QueryTile:
    """One warpgroup's 64 queries of a block."""

    def __init__(
        self,
        block: Block,
        warpgroup: jax.Array,
        blocks: MosaicBlocks,
        buffers: Buffers,
        window: int | None,
        soft_cap: float | None,
        interpreted: bool,
    ) -> None:
        self.block, self.warpgroup, self.blocks, self.buffers = block, warpgroup, blocks, buffers
        self.window, self.soft_cap, self.interpreted = window, soft_cap, interpreted
        self.offset = warpgroup * WARPGROUP_ROWS
        self.position = block.position + self.offset
        self.count = jnp.clip(block.num_tokens - self.offset, 0, WARPGROUP_ROWS)

    def attend(self, q_ref: Any, scale: jax.Array) -> Softmax:
        """Attend to all keys that the tile's queries see; q_ref [T, N, H], scale f32[]."""
        keys, block, buffers = jnp.int32(self.blocks.keys), self.block, self.buffers
        head_size = q_ref.shape[-1]
        # Blocks of keys that all queries see whole lie in the middle; later ones only other tiles see.
        end = lax.div(self.position + self.count + (keys - 1), keys) - block.first_step
        end = jnp.where((self.count > 0) & (block.num_steps > 0), jnp.minimum(end, block.num_steps), 0)
        last = jnp.clip(lax.div(self.position + 1, keys) - block.first_step, 0, end)
        full = jnp.int32(0)
        if self.window is not None:
            beyond = jnp.maximum(self.position + self.count - self.window, 0)
            full = jnp.clip(lax.div(beyond + (keys - 1), keys) - block.first_step, 0, end)
            last = jnp.maximum(last, full)

        def fetch_queries() -> None:
            rows = pl.ds(block.first_token + self.offset, WARPGROUP_ROWS)
            there = buffers.q_there.at[self.warpgroup]
            plgpu.copy_gmem_to_smem(q_ref.at[rows, block.head], buffers.q.at[self.warpgroup], there)
            plgpu.barrier_wait(there)

        pl.when(block.num_steps > 0)(fetch_queries)
        by_row = plgpu.Layout.WGMMA.reduce(1)
        softmax: Softmax = Softmax(
            plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS, head_size), jnp.float32), plgpu.Layout.WGMMA),
            plgpu.layout_cast(jnp.full((WARPGROUP_ROWS,), LOWEST, jnp.float32), by_row),
            plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS,), jnp.float32), by_row),
        )
        masked, unmasked = (functools.partial(self._step, scale=scale, masked=masked) for masked in (True, False))
        if self.window is not None:
            softmax = lax.fori_loop(0, full, masked, softmax)
        softmax = lax.fori_loop(full, last, unmasked, softmax)
        softmax = lax.fori_loop(last, end, masked, softmax)
        pl.loop(end, block.num_steps)(self._pass_on)
        return softmax

    def _pass_on(self, step: jax.Array) -> None:
        """Release a block of keys that only the other warpgroup's queries see."""
        buffers, slot = self.buffers, lax.rem(step, jnp.int32(self.blocks.stages))
        plgpu.barrier_wait(buffers.keys_there.at[slot])
        plgpu.barrier_arrive(buffers.keys_free.at[slot])
        plgpu.barrier_wait(buffers.values_there.at[slot])
        self._clean(step, slot)
        plgpu.barrier_arrive(buffers.values_free.at[slot])

    def _step(self, step: jax.Array, softmax: Softmax, *, scale: jax.Array, masked: bool) -> Softmax:
        buffers, slot = self.buffers, lax.rem(step, jnp.int32(self.blocks.stages))
        shape = (WARPGROUP_ROWS, self.blocks.keys)
        plgpu.barrier_wait(buffers.keys_there.at[slot])

        def multiply(sums: Any) -> Any:
            plgpu.wgmma(sums, buffers.q.at[self.warpgroup], mosaic.transposed(buffers.keys.at[slot]))
            return sums[...]

        scores = pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))
        plgpu.barrier_arrive(buffers.keys_free.at[slot])
        scores = self._capped(scores, scale)
        if masked:
            key = (self.block.first_step + step) * self.blocks.keys + _iota(shape, 1)
            query = self.position + _iota(shape, 0)
            visible = key <= query
            if self.window is not None:
                visible &= key > query - self.window
            scores = jnp.where(visible, scores, LOWEST)
        peak = jnp.maximum(softmax.peak, scores.max(axis=1))
        decay = jnp.exp2(softmax.peak - peak)
        weights = jnp.exp2(scores - _along_rows(peak, shape))
        total = softmax.total * decay + weights.sum(axis=1)
        output = softmax.output * _along_rows(decay, softmax.output.shape)
        plgpu.barrier_wait(buffers.values_there.at[slot])
        if masked:
            self._clean(step, slot)
        output = self._add(output, weights.astype(buffers.values.dtype), slot)
        plgpu.barrier_arrive(buffers.values_free.at[slot])
        return Softmax(output, peak, total)

    def _capped(self, scores: jax.Array, scale: jax.Array) -> jax.Array:
        """Scale and cap the scores, in units of log2."""
        if self.soft_cap is None:
            return scores * (scale * LOG2E)
        # tanh by exp2: exact for large scores of either sign, where exp2 is 0 or inf.
        tanh = 1.0 - 2.0 / (jnp.exp2(scores * (scale * (2.0 * LOG2E / self.soft_cap))) + 1.0)
        return tanh * (self.soft_cap * LOG2E)

    def _add(self, output: jax.Array, weights: jax.Array, slot: jax.Array) -> jax.Array:
        """Compute output + weights · values."""
        values = self.buffers.values.at[slot]
        if self.interpreted:  # whose products know neither sums to begin with nor a left side in registers
            mine = self.buffers.weights.at[self.warpgroup]
            mine[...] = weights
            plgpu.commit_smem()

            def multiply(sums: Any) -> Any:
                plgpu.wgmma(sums, mine, values)
                return sums[...]

            product: jax.Array = pl.run_scoped(multiply, plgpu.ACC(output.shape, jnp.float32))
            return output + product

        def multiply_onto(sums: Any) -> None:
            plgpu.wgmma(sums, weights, values)

        added: jax.Array = pl.run_state(multiply_onto)(plgpu.ACC.init(output))
        return added

    def _clean(self, step: jax.Array, slot: jax.Array) -> None:
        """Clear the last buffer's values beyond the request's end: 0 times an arbitrary number need not be 0."""
        keys, block, buffers = self.blocks.keys, self.block, self.buffers
        rest = lax.rem(block.end, jnp.int32(keys))

        def clear(part: int) -> None:
            rows = buffers.values.at[slot, pl.ds(part * WARPGROUP_ROWS, WARPGROUP_ROWS)]
            stored = plgpu.layout_cast(rows[...], plgpu.Layout.WGMMA)
            row = part * WARPGROUP_ROWS + _iota(stored.shape, 0)
            rows[...] = jnp.where(row < rest, stored, jnp.zeros_like(stored))

        def clear_together() -> None:
            for part in range(keys // WARPGROUP_ROWS):
                mine = self.warpgroup == part % self.blocks.warpgroups
                pl.when(mine)(functools.partial(clear, part))
            plgpu.commit_smem()
            plgpu.barrier_arrive(buffers.cleaned)
            plgpu.barrier_wait(buffers.cleaned)

        pl.when((step == block.num_steps - 1) & (rest != 0))(clear_together)

    def write(self, softmax: Softmax, out_ref: Any, v_scale: jax.Array, sink: jax.Array | None) -> None:
        """Write the weighted means times v_scale into the tile's rows of out_ref [T, N, H]; sink f32[]: the head's."""
        output, peak, total = softmax
        if sink is not None:
            sink = sink * LOG2E
            with_sink = jnp.maximum(peak, sink)
            decay = jnp.exp2(peak - with_sink)
            output = output * _along_rows(decay, output.shape)
            total = total * decay + jnp.exp2(sink - with_sink)
        factor = v_scale / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
        mine = self.buffers.out.at[self.warpgroup]
        mosaic.store_rows(mine, (output * _along_rows(factor, output.shape)).astype(mine.dtype))
        plgpu.commit_smem()
        first = self.block.first_token + self.offset

        def into(row: jax.Array | int, size: int) -> Any:
            return out_ref.at[pl.ds(first + row, size), self.block.head]

        mosaic.copy_out(mine, into, self.count)


def _iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    found: jax.Array = plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)
    return found


def _along_rows(column: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.broadcast_in_dim(column, shape, (0,))
