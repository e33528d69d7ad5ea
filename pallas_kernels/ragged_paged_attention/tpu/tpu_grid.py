"""Grid steps that requests of one token share: planned once an engine step, for all layers.

A request of up to 256 keys fills the matrix unit for less time than its results take to come back, so several of them
share a step of the kernel's grid: up to four of up to 128 keys, or two of 129 to 256. Their queries must be in one
block of rows, which the pipeline brings at once; a request with more keys has a grid step of its own, and so has one
whose block has no other of its length.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import BlockPlan

SHORT = LANES
"""Keys reserved for a request in a shared grid step; some steps reserve twice as many."""
FEW = 2
"""Engine steps of up to this number of requests share no grid steps."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedSteps:
    """At most B grid steps, in the order of their first requests; so those of a block are consecutive.

    Attributes:
        num_rows: i32[B], requests of a grid step.
        rows: i32[B] each: the first request of each grid step, its second and so on; after the last the first repeats.
        pages: i32[B · longest / page], the first page numbers of each request.
    """

    num_rows: jax.Array
    rows: tuple[jax.Array, ...]
    pages: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GridPlan:
    """The grid steps of requests of one token.

    Attributes:
        blocks: the first request of each grid step, as a block of one token.
        shared: None if no two requests share a grid step.
    """

    blocks: BlockPlan
    shared: SharedSteps | None

    @classmethod
    def of_rows(
        cls,
        kv_len: jax.Array,
        num_rows: jax.Array,
        block_table: jax.Array,
        page: int,
        block: int,
        together: int,
        longest: int,
    ) -> Self:
        """Plan grid steps; row b is the last token of request b.

        Args:
            kv_len: i32[B].
            num_rows: i32[], the real rows.
            block_table: i32[B, Pmax].
            page: tokens of a page.
            block: rows that the pipeline brings at once; divides B.
            together: requests of a grid step at most; 1: none shares one.
            longest: most keys of those, see TpuBlocks.
        """
        if together == 1:
            return cls(BlockPlan.of_rows(kv_len, num_rows), None)
        B = kv_len.shape[0]
        row = jnp.arange(B, dtype=jnp.int32)
        is_real = row < num_rows
        most = jnp.where(kv_len <= SHORT, together, jnp.where(kv_len <= longest, together // 2, 1))  # of such a step
        # Sums over [rows, others] in place of cumulative ones and gathers: each is one operation of some µs on a TPU.
        other = jnp.arange(block, dtype=jnp.int32)
        of_block = jnp.where(is_real, most, 0).reshape(-1, 1, block)
        is_like = of_block == most.reshape(-1, block, 1)
        before = (is_like & (other < other[:, None])).sum(axis=-1, dtype=jnp.int32)  # [B / block, block]
        ahead = before[:, None, :] - before[:, :, None]  # of others, among those like it
        place = jnp.where(is_like & (ahead < of_block), ahead, 0)
        offset = other - other[:, None]
        behind = [jnp.where(place == j, offset, 0).sum(axis=-1).reshape(B) for j in range(1, together)]
        is_first = is_real & (lax.rem(before.reshape(B), most) == 0)
        step = (is_first & (row <= row[:, None])).sum(axis=-1, dtype=jnp.int32) - 1
        is_step = is_first & (step == row[:, None])  # [steps, rows]

        def of_steps(x: jax.Array) -> jax.Array:
            return jnp.where(is_step, x, 0).sum(axis=-1, dtype=jnp.int32)

        first = of_steps(row)
        rows = (first, *(of_steps(row + one) for one in behind))
        size = jnp.ones_like(row)
        for one in behind:
            size += (one > 0).astype(jnp.int32)
        num_steps = step[-1:] + 1
        blocks = BlockPlan(first, of_steps(kv_len - 1), first, (row < num_steps).astype(jnp.int32), num_steps, 1)
        pages = block_table[:, : longest // page]
        pages = jnp.pad(pages, ((0, 0), (0, longest // page - pages.shape[1])))
        return cls(blocks, SharedSteps(of_steps(size), rows, pages.reshape(-1)))
