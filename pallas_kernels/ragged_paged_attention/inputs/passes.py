"""Passes of a portable backend over a batch: single tokens and chunks of prompts, each in blocks of queries."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata


class Place(NamedTuple):
    """The position of a block of queries.

    Attributes:
        request: i32[], its request.
        start: i32[], its first token along T.
        kv_len: i32[], tokens of the request in the cache.
        first_position: i32[], position of its first token.
    """

    request: jax.Array
    start: jax.Array
    kv_len: jax.Array
    first_position: jax.Array


class Pass(NamedTuple):
    """Queries that are attended together.

    Attributes:
        block: static; queries of one request at a time.
        query_len: i32[B], queries of each request; 0: the request is not in this pass.
        one_each: static; the pass has only the first requests, which own one token each.
    """

    block: int
    query_len: jax.Array
    one_each: bool

    @property
    def block_end(self) -> jax.Array:
        """Number of blocks of requests 0 … b, i32[B]."""
        return jnp.cumsum(-(-self.query_len // self.block))

    def place(self, number: jax.Array, block_end: jax.Array, metadata: AttentionMetadata) -> Place:
        """Return the position of a block.

        Args:
            number: i32[], number of the block.
            block_end: the attribute, computed once.
        """
        request = number if self.one_each else jnp.searchsorted(block_end, number, side="right")
        query_len = self.query_len[request]
        before = (number - (block_end[request] - -(-query_len // self.block))) * self.block  # tokens of the request
        kv_len = metadata.kv_len[request]
        return Place(request, metadata.query_start[request] + before, kv_len, kv_len - query_len + before)


def passes(metadata: AttentionMetadata, block: int) -> list[Pass]:
    """Divide a batch into passes.

    Args:
        block: queries of a block of a chunk.
    """
    query_len = metadata.query_start[1:] - metadata.query_start[:-1]
    if metadata.kind == "decode":
        return [Pass(1, query_len, True)]
    decodes = jnp.arange(query_len.shape[0]) < metadata.num_decodes
    return [Pass(1, jnp.where(decodes, query_len, 0), True), Pass(block, jnp.where(decodes, 0, query_len), False)]
