"""How ragged queries are cut into blocks of one request each: computed once a step, for all layers."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """NB = ceil(T / block) + B blocks at most, in the order of their tokens.

    Attributes:
        request: i32[NB], whose tokens. position: i32[NB], of the first token in its request.
        first_token: i32[NB], its index along T. count: i32[NB], tokens of the block; 0 beyond the last block.
        num_blocks: i32[1], real blocks.
        slot: i32[T], block · number + offset of each token; 0 for tokens in no block.
        block: static, tokens a block.
    """

    request: jax.Array
    position: jax.Array
    first_token: jax.Array
    count: jax.Array
    num_blocks: jax.Array
    slot: jax.Array
    block: int = dataclasses.field(metadata={"static": True})

    def gather(self, rows: jax.Array) -> jax.Array:
        """rows [T, …] → [NB, block, …]; rows beyond a block's count are those of other tokens."""
        tokens = self.first_token[:, None] + jnp.arange(self.block)
        return rows.at[jnp.minimum(tokens, rows.shape[0] - 1)].get(mode="promise_in_bounds")

    def scatter(self, blocks: jax.Array) -> jax.Array:
        """[NB, block, …] → [T, …]; rows of tokens in no block are meaningless, and may not be finite."""
        rows = blocks.reshape(-1, *blocks.shape[2:])
        return rows.at[self.slot].get(mode="promise_in_bounds")

    @classmethod
    def of_rows(cls, kv_len: jax.Array, num_rows: jax.Array) -> Self:
        """Blocks of one token: row b is the last token of request b. kv_len i32[B], num_rows i32[]."""
        rows = jnp.arange(kv_len.shape[0], dtype=jnp.int32)
        count = (rows < num_rows).astype(jnp.int32)
        return cls(rows, kv_len - 1, rows, count, num_rows.reshape(1).astype(jnp.int32), rows, 1)


def plan_blocks(
    query_start: jax.Array, kv_len: jax.Array, num_decodes: jax.Array, num_tokens: int, block: int
) -> BlockPlan:
    """Cuts the tokens of requests num_decodes … into blocks.

    Args:
        query_start, kv_len, num_decodes: see AttentionMetadata.
        num_tokens: T.
    """
    B = kv_len.shape[0]
    own = query_start[1:] - query_start[:-1]
    query_len = jnp.where(jnp.arange(B) < num_decodes, 0, own)
    block_end = jnp.cumsum(-(-query_len // block), dtype=jnp.int32)  # [B], blocks of requests 0 … b
    block_start = block_end - -(-query_len // block)
    number = jnp.arange(-(-num_tokens // block) + B, dtype=jnp.int32)
    request = jnp.minimum(_count_up_to(block_end, number), B - 1).astype(jnp.int32)
    offset = (number - block_start[request]) * block
    count = jnp.clip(query_len[request] - offset, 0, block)
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    owner = jnp.minimum(_count_up_to(query_start[1:], token), B - 1)
    within = token - query_start[owner]
    planned = (owner >= num_decodes) & (within < query_len[owner])
    return BlockPlan(
        request=request,
        position=kv_len[request] - query_len[request] + offset,
        first_token=jnp.where(count > 0, query_start[request] + offset, 0),
        count=count,
        num_blocks=block_end[-1:],
        slot=jnp.where(planned, block_start[owner] * block + within, 0),
        block=block,
    )


def _count_up_to(ends: jax.Array, numbers: jax.Array) -> jax.Array:
    """i32[M] of sorted `ends` [B] and `numbers` [M]: how many ends each number has reached."""
    # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
    return jnp.searchsorted(ends, numbers, side="right", method="compare_all")
