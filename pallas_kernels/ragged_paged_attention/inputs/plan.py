"""Division of ragged queries into blocks of one request each: computed once a step, for all layers."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """At most NB = ceil((T + (align - 1) · B) / block) + B blocks, in the order of their tokens.

    A block's window of `block` tokens begins at a multiple of `align`; its own tokens begin anywhere in the first
    `align` of them.

    Attributes:
        request: i32[NB], request of each block.
        position: i32[NB], position of its first token in the request.
        first_token: i32[NB], index of that token along T.
        count: i32[NB], tokens of the block; 0 beyond the last block.
        num_blocks: i32[1], real blocks.
        block, align: static, in tokens.
    """

    request: jax.Array
    position: jax.Array
    first_token: jax.Array
    count: jax.Array
    num_blocks: jax.Array
    block: int = dataclasses.field(metadata={"static": True})
    align: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def of_rows(cls, kv_len: jax.Array, num_rows: jax.Array) -> Self:
        """Make blocks of one token: row b is the last token of request b. kv_len i32[B], num_rows i32[]."""
        rows = jnp.arange(kv_len.shape[0], dtype=jnp.int32)
        count = (rows < num_rows).astype(jnp.int32)
        return cls(rows, kv_len - 1, rows, count, num_rows.reshape(1).astype(jnp.int32), 1)


def plan_blocks(
    query_start: jax.Array, kv_len: jax.Array, num_decodes: jax.Array, num_tokens: int, block: int, align: int = 1
) -> BlockPlan:
    """Cut the tokens of requests num_decodes … into blocks.

    Args:
        query_start, kv_len, num_decodes: see AttentionMetadata.
        num_tokens: T.
        block, align: see BlockPlan; block is a multiple of align.
    """
    B = kv_len.shape[0]
    own = query_start[1:] - query_start[:-1]
    query_len = jnp.where(jnp.arange(B) < num_decodes, 0, own)
    skipped = jnp.where(query_len > 0, query_start[:-1] % align, 0)  # of the first window
    num_blocks = -(-(skipped + query_len) // block)
    block_end = jnp.cumsum(num_blocks, dtype=jnp.int32)  # [B], blocks of requests 0 … b
    block_start = block_end - num_blocks
    number = jnp.arange(-(-(num_tokens + (align - 1) * B) // block) + B, dtype=jnp.int32)
    request = jnp.minimum(_count_up_to(block_end, number), B - 1).astype(jnp.int32)
    window = (number - block_start[request]) * block - skipped[request]  # within the request
    offset = jnp.maximum(window, 0)
    count = jnp.clip(jnp.minimum(window + block, query_len[request]) - offset, 0, block)
    return BlockPlan(
        request=request,
        position=kv_len[request] - query_len[request] + offset,
        first_token=jnp.where(count > 0, query_start[request] + offset, 0),
        count=count,
        num_blocks=block_end[-1:],
        block=block,
        align=align,
    )


def _count_up_to(ends: jax.Array, numbers: jax.Array) -> jax.Array:
    """Count for each of `numbers` [M] the sorted `ends` [B] that it has reached, i32[M]."""
    # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
    return jnp.searchsorted(ends, numbers, side="right", method="compare_all")
