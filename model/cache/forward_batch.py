"""ForwardBatch: all inputs of one forward step, as one device pytree. Ragged: it serves prefill and decode alike."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.kv_cache_update import CacheWrites
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ForwardBatch:
    """The tokens of up to B requests in one step, request after request along T.

    Rows from `num_requests` on, and tokens from `query_start[num_requests]` on, are padding: their block tables point
    at page 0 (the scratch page), so nothing reads what they write.

    Attributes:
        token_ids: i32[T]
        positions: i32[T], position of each token in its sequence; 0 for padding.
        query_start: i32[B+1], request b owns tokens query_start[b] … query_start[b+1]-1; padding rows repeat the end.
        kv_len: i32[B], tokens of the request in the cache after this step's write; 0 for padding rows.
        block_tables: i32[B, C] each, page numbers of request b in order; 0 beyond its end. Entries are arbitrary for
            pages whose tokens have left the window of the table's layers: no query sees those pages.
        page_ids: i32[T] each, by table: page that token t's keys and values are written to; 0 for padding.
        page_offsets: i32[T], its row within that page.
        last_rows: i32[B], index along T of request b's last token of this step; 0 for padding rows.
        num_requests: i32[], real rows of B.
        num_decodes: i32[]; requests 0 … num_decodes - 1 own one token each. Later requests may own one token, too.
        kind: static; "decode" promises T == B and one token per row (row b is token b), so cheaper code may run.
        slots: i32[B], the slot whose state request b continues, in layers that keep a state for each slot; 0 (the
            scratch slot) for rows whose tokens no request uses: they change no state. None: no layer keeps a state.
        embeds: [R, D], rows that can replace embeddings of tokens, by `embed_rows`; None: no token has one.
        embed_rows: i32[T], the row of `embeds` that each token uses; -1: the embedding of its id.
        rotary_positions: i32[T], the position that rotates each token, or i32[A, T] if it has several axes; None: the
            position in the sequence. The place in the cache and the position that seeds sampling do not depend on it.
    """

    token_ids: jax.Array
    positions: jax.Array
    query_start: jax.Array
    kv_len: jax.Array
    block_tables: tuple[jax.Array, ...]
    page_ids: tuple[jax.Array, ...]
    page_offsets: jax.Array
    last_rows: jax.Array
    num_requests: jax.Array
    num_decodes: jax.Array
    kind: Literal["decode", "prefill"] = dataclasses.field(metadata={"static": True})
    slots: jax.Array | None = None
    embeds: jax.Array | None = None
    embed_rows: jax.Array | None = None
    rotary_positions: jax.Array | None = None

    @property
    def num_tokens(self) -> jax.Array:
        """Number of real tokens of T, i32[]."""
        return self.query_start[-1]

    @property
    def num_columns(self) -> int:
        """Number of columns of each block table (C)."""
        return self.block_tables[0].shape[1]

    def with_embeds(self, x: jax.Array) -> jax.Array:
        """Replace rows of x [T, D] with rows of `embeds` where tokens have one."""
        if self.embeds is None or self.embed_rows is None:
            return x
        rows = self.embeds[jnp.maximum(self.embed_rows, 0)].astype(x.dtype)
        return jnp.where(self.embed_rows[:, None] >= 0, rows, x)

    def attention_metadata(self) -> AttentionMetadata:
        """Return the part that attention needs, with the first block table."""
        table = self.block_tables[0]
        return AttentionMetadata(self.query_start, self.kv_len, table, self.num_requests, self.num_decodes, self.kind)

    def cache_writes(self, page_size: int) -> CacheWrites:
        """Return the cells that the step's keys and values are written to, by the first block table."""
        num_rows, num_tokens = self.kv_len.shape[0], self.token_ids.shape[0]
        # A request's tokens touch at most two pages more than they would fill.
        max_runs = num_tokens // page_size + 2 * num_rows
        one_each = self.kind == "decode"
        return CacheWrites(
            self.page_ids[0], self.page_offsets, max_runs=None if one_each else max_runs, one_each=one_each
        )
