"""Which requests of one token share a turn of the TPU kernel: computed once a step, for all layers.

A turn is a step of the kernel's grid. A request of up to 128 keys fills the matrix unit for less time than its results
take to come back, so several of them share one. Their queries have to lie in one block of rows, which the pipeline
brings at once; a request with more keys has a turn of its own, and so has a short one that is alone in its block.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.plan import BlockPlan, count_up_to

SHORT = LANES
"""Keys of a request that shares a turn, at most."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedTurns:
    """Turns of B requests at most; those of a block of rows come one after the other.

    Attributes:
        num_rows: i32[B], requests of a turn.
        rows: i32[B · together], those requests; behind the last of a turn its first.
        pages: i32[B · SHORT / page], the first page numbers of each request.
    """

    num_rows: jax.Array
    rows: jax.Array
    pages: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TurnPlan:
    """blocks: the first request of each turn, as a block of one token. shared: None if no two share a turn."""

    blocks: BlockPlan
    shared: SharedTurns | None

    @classmethod
    def of_rows(
        cls, kv_len: jax.Array, num_rows: jax.Array, block_table: jax.Array, page: int, block: int, together: int
    ) -> Self:
        """Row b is the last token of request b.

        Args:
            kv_len: i32[B]. num_rows: i32[], the real ones. block_table: i32[B, Pmax]. page: tokens.
            block: rows that the pipeline brings at once; divides B.
            together: requests of a turn at most; 1: none shares one.
        """
        if together == 1:
            return cls(BlockPlan.of_rows(kv_len, num_rows), None)
        B = kv_len.shape[0]
        row = jnp.arange(B, dtype=jnp.int32).reshape(-1, block)
        is_real = row < num_rows
        is_short = is_real & (kv_len.reshape(-1, block) <= SHORT)
        is_long = is_real & ~is_short
        before = jnp.cumsum(is_short, axis=1, dtype=jnp.int32) - 1  # short ones before a row of its block
        num_shared = -(-is_short.sum(axis=1, dtype=jnp.int32) // together)[:, None]
        alone = num_shared + jnp.cumsum(is_long, axis=1, dtype=jnp.int32) - 1
        turn = jnp.where(is_short, before // together, jnp.where(is_long, alone, block))  # of the block's
        place = jnp.where(is_short, before % together, 0)
        num_turns = num_shared[:, 0] + is_long.sum(axis=1, dtype=jnp.int32)
        # [turns of the block, places, rows of the block], and a sum over the one row that is there
        is_there = (turn[:, None, None] == jnp.arange(block)[:, None, None]) & (
            place[:, None, None] == jnp.arange(together)[:, None]
        )
        rows = jnp.where(is_there, row[:, None, None], 0).sum(axis=-1, dtype=jnp.int32)
        filled = is_there.any(axis=-1)
        rows = jnp.where(filled, rows, rows[..., :1])
        # From turns of a block to those of the step.
        end = jnp.cumsum(num_turns, dtype=jnp.int32)
        number = jnp.arange(B, dtype=jnp.int32)
        of_block = jnp.minimum(count_up_to(end, number), B // block - 1)
        source = of_block * block + jnp.clip(number - (end - num_turns)[of_block], 0, block - 1)
        rows = rows.reshape(B, together)[source]
        size = filled.sum(axis=-1, dtype=jnp.int32).reshape(B)[source]
        first = rows[:, 0]
        blocks = BlockPlan(first, kv_len[first] - 1, first, (number < end[-1]).astype(jnp.int32), end[-1:], 1)
        pages = block_table[:, : SHORT // page]
        pages = jnp.pad(pages, ((0, 0), (0, SHORT // page - pages.shape[1])))
        return cls(blocks, SharedTurns(size, rows.reshape(-1), pages.reshape(-1)))
