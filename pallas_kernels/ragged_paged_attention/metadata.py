"""Which token belongs to which request, and where its pages are: what attention needs beside q and the cache."""

import dataclasses
from typing import Literal

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMetadata:
    """A ragged batch of up to B requests over T tokens.

    Token t of request b has position kv_len[b] - (query_start[b+1] - t): the queries are the last tokens of the cache.

    Attributes:
        query_start: i32[B+1], request b owns tokens query_start[b] … query_start[b+1]-1; padding rows repeat the end.
        kv_len: i32[B], tokens of the request in the cache, its queries included; 0 for padding rows.
        block_table: i32[B, Pmax], pages of request b in order; 0 (the scratch page) beyond its end.
        num_requests: i32[], real rows of B.
        num_decodes: i32[], the first so many requests own one token each (request b token b), so cheaper code may
            compute them; 0 promises nothing.
        kind: static; "decode" promises T == B and that row b owns token b alone.
    """

    query_start: jax.Array
    kv_len: jax.Array
    block_table: jax.Array
    num_requests: jax.Array
    num_decodes: jax.Array
    kind: Literal["decode", "prefill"] = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """What is the same for every token of a layer.

    Attributes:
        scale: factor on q·k before the softmax.
        sliding_window: a query at position p sees only keys at positions > p - sliding_window; None: all before it.
        soft_cap: scores become soft_cap · tanh(score / soft_cap); None: unchanged.
    """

    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
