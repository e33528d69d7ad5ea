"""The gated delta rule over states in slots: each row, one request's tokens, continues the state of its slot.

A row of the batch that is padding, or whose request has ended, has slot 0, the scratch slot: its results are unused,
and it changes no state. So the scratch slot's states stay zeros.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.gated_delta.convolution import convolve_ragged, convolve_singles
from palladio.pallas_kernels.gated_delta.recurrence import delta_chunks, delta_singles

SCRATCH_SLOT = 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeltaRows:
    """The rows of a step, and the slot of each row's state.

    Attributes:
        query_start: i32[B+1], row b owns tokens query_start[b] … query_start[b+1]-1; padding rows repeat the end.
        offsets: i32[T], position of each token in its row.
        slots: i32[B], the slot whose state each row continues and updates; SCRATCH_SLOT: the row is unused.
        is_first: bool[B], whether a row has a request's first tokens: its state starts from zeros, whatever the slot
            holds.
        num_decodes: i32[]; rows 0 … num_decodes - 1 have one token each. Later rows may have one token, too.
        kind: static; "decode" promises T == B and that row b has token b.
    """

    query_start: jax.Array
    offsets: jax.Array
    slots: jax.Array
    is_first: jax.Array
    num_decodes: jax.Array
    kind: Literal["decode", "prefill"] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(
        cls,
        query_start: jax.Array,
        kv_len: jax.Array,
        slots: jax.Array,
        num_tokens: int,
        num_decodes: jax.Array,
        kind: Literal["decode", "prefill"],
    ) -> "DeltaRows":
        """Describe the rows of a step.

        Args:
            kv_len: i32[B], tokens of each row's request after the step.
            num_tokens: T.
        """
        counts = query_start[1:] - query_start[:-1]
        if kind == "decode":
            offsets = jnp.zeros(num_tokens, jnp.int32)
        else:
            token = jnp.arange(num_tokens, dtype=jnp.int32)
            row = jnp.searchsorted(query_start[1:], token, side="right", method="compare_all")
            offsets = token - query_start[jnp.minimum(row, slots.shape[0] - 1)]
        return cls(query_start, offsets, slots, kv_len <= counts, num_decodes, kind)

    def read(self, states: jax.Array, slots: jax.Array) -> jax.Array:
        """Read the rows' states: [S, …] → [B, …], zeros for rows with a request's first tokens."""
        fresh = self.is_first.reshape(-1, *(1,) * (states.ndim - 1))
        return jnp.where(fresh, jnp.zeros((), states.dtype), states[slots])

    @staticmethod
    def write(states: jax.Array, slots: jax.Array, new: jax.Array) -> jax.Array:
        """Write rows' states [B, …] into their slots of the states [S, …]."""
        nowhere = states.shape[0]
        return states.at[jnp.where(slots == SCRATCH_SLOT, nowhere, slots)].set(new.astype(states.dtype), mode="drop")


def short_convolution(
    x: jax.Array, weight: jax.Array, states: jax.Array, rows: DeltaRows
) -> tuple[jax.Array, jax.Array]:
    """Compute each channel's weighted sum of a token and the W - 1 tokens before it, within its request.

    Args:
        x: [T, K, C].
        weight: [K, C, W], the weight of the token itself last.
        states: [S, K, W-1, C], the newest tokens of each slot before these.

    Returns:
        f32[T, K, C], and the states after these tokens.
    """
    history = rows.read(states, rows.slots)
    wide, before = x.astype(jnp.float32), history.astype(jnp.float32)
    if rows.kind == "decode":
        out, new = convolve_singles(wide, weight.astype(jnp.float32), before)
    else:
        out, new = convolve_ragged(wide, weight.astype(jnp.float32), before, rows.query_start, rows.offsets)
    return out, rows.write(states, rows.slots, new)


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    rows: DeltaRows,
) -> tuple[jax.Array, jax.Array]:
    """Apply the gated delta rule (reference.py). Rows of one token take a single step, other rows run in chunks.

    Args:
        q, k: f32[T, K, dk], normalized and scaled.
        v: [T, K, R, dv], with R value heads for each key head.
        decay: f32[T, K, R], logarithms, at most 0.
        beta: f32[T, K, R].
        states: f32[S, K, R, dk, dv].

    Returns:
        [T, K, R, dv] in v's dtype, and the states after these tokens.
    """
    if rows.kind == "decode":
        out, new = delta_singles(q, k, v, decay, beta, rows.read(states, rows.slots))
        return out.astype(v.dtype), rows.write(states, rows.slots, new)
    T, B = q.shape[0], min(q.shape[0], rows.slots.shape[0])
    starts, counts = rows.query_start[:-1], rows.query_start[1:] - rows.query_start[:-1]
    is_decode = jnp.arange(rows.slots.shape[0]) < rows.num_decodes
    counts = jnp.where(is_decode | (rows.slots == SCRATCH_SLOT), 0, counts)
    out, states = delta_chunks((q, k, v, decay, beta), states, (starts, counts), rows.slots, rows.is_first)

    def decode(out: jax.Array, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        slots = jnp.where(is_decode, rows.slots, SCRATCH_SLOT)
        old = rows.read(states, slots)[:B]
        single, new = delta_singles(q[:B], k[:B], v[:B], decay[:B], beta[:B], old)
        is_single = (jnp.arange(T) < rows.num_decodes)[:, None, None, None]
        single = jnp.pad(single.astype(out.dtype), ((0, T - B), (0, 0), (0, 0), (0, 0)))
        return jnp.where(is_single, single, out), rows.write(states, slots[:B], new)

    both: tuple[jax.Array, jax.Array] = jax.lax.cond(rows.num_decodes > 0, decode, lambda *same: same, out, states)
    return both
