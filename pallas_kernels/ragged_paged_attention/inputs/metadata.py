"""Tokens and pages of each request: the inputs of attention besides q and the cache."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import BlockPlan, plan_blocks
from palladio.pallas_kernels.target import Target


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
        num_decodes: i32[]; requests 0 … num_decodes - 1 own one token each (request b token b), so cheaper code may
            compute them; 0 promises nothing.
        kind: static; "decode" promises T == B and that row b owns token b alone.
        chunks: blocks of the tokens of requests num_decodes …, planned once for all layers; None: each call plans for
            itself.
    """

    query_start: jax.Array
    kv_len: jax.Array
    block_table: jax.Array
    num_requests: jax.Array
    num_decodes: jax.Array
    kind: Literal["decode", "prefill"] = dataclasses.field(metadata={"static": True})
    chunks: BlockPlan | None = None

    def chunks_of(self, num_tokens: int, block: int, align: int = 1) -> BlockPlan:
        """Return the blocks of up to `block` tokens: as planned, or planned now if the plan is for another size.

        Args:
            num_tokens: T.
            align: see BlockPlan.
        """
        if self.chunks is not None and (self.chunks.block, self.chunks.align) == (block, align):
            return self.chunks
        return plan_blocks(self.query_start, self.kv_len, self.num_decodes, num_tokens, block, align)

    def owners(self, num_tokens: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return i32[T] each: the request of a token, that request's `kv_len`, and the token's position.

        Args:
            num_tokens: T.
        """
        token = jnp.arange(num_tokens)
        request = jnp.searchsorted(self.query_start, token, side="right") - 1
        request = jnp.clip(request, 0, self.kv_len.shape[0] - 1)
        kv_len = self.kv_len[request]
        return request, kv_len, kv_len - (self.query_start[request + 1] - token)

    def planned(self, num_tokens: int, block: int | None, align: int = 1) -> "AttentionMetadata":
        """Add the plan for blocks of that size; drop the plan if the size is None or the step only decodes."""
        if block is None or self.kind == "decode":
            return self
        return dataclasses.replace(self, chunks=self.chunks_of(num_tokens, block, align))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """Options that all tokens of a layer share.

    Attributes:
        scale: factor on q·k before the softmax.
        sliding_window: a query at position p sees only keys at positions > p - sliding_window; None: all before it.
        soft_cap: scores become soft_cap · tanh(score / soft_cap); None: unchanged.
        target: the device that kernels are compiled for.
        sinks: f32[N], the score of one more key of each query head, whose value is 0; None: there is none.
        k_scale: f32[], factor on stored keys.
        v_scale: f32[], factor on stored values.
        row_scales: f32[P, R, L], of a cache of int8, see ScaledPages; None: it is of another type.
    """

    scale: float = dataclasses.field(metadata={"static": True})
    sliding_window: int | None = dataclasses.field(default=None, metadata={"static": True})
    soft_cap: float | None = dataclasses.field(default=None, metadata={"static": True})
    target: Target = dataclasses.field(default=Target(), metadata={"static": True})  # frozen
    sinks: jax.Array | None = None
    k_scale: jax.Array | float = 1.0
    v_scale: jax.Array | float = 1.0
    row_scales: jax.Array | None = None
