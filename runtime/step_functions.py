"""What a step computes: pure functions of device state and one small host vector. `step_programs` compiles them.

Device state, all donated and updated in place: the KV cache, the block tables, and the sampler's state (which holds
the last sampled token of each slot, so that a decode step needs no token from the host).
"""

import jax
import jax.numpy as jnp

from palladio.model.decoder import CausalLM
from palladio.model.forward_batch import ForwardBatch
from palladio.runtime import batch_builder as columns
from palladio.runtime.batch_builder import ForwardLayout
from palladio.runtime.sampler import SampleOutput, SampleTier, SamplingBatch, sample
from palladio.runtime.sampler_state import SamplerState


def unpack_forward(
    packed: jax.Array, tables: jax.Array, last_token: jax.Array, layout: ForwardLayout, page_size: int
) -> tuple[ForwardBatch, jax.Array]:
    """Derives a step's ForwardBatch from its host vector and the device's state.

    Args:
        packed: i32[layout.size], see ForwardLayout.
        tables: i32[slots, P], the block table of each slot.
        last_token: i32[slots], the last sampled token of each slot.

    Returns:
        The batch, and the block tables with the step's changes.
    """
    count, slots, starts, lengths, updates, tokens = (packed[part] for part in layout.sections())
    changes = updates.reshape(-1, 3)
    tables = tables.at[changes[:, 0], changes[:, 1]].set(changes[:, 2], mode="drop")
    block_table = tables[slots]
    B = layout.num_requests
    query_start = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])
    if layout.num_tokens == 0:
        row = jnp.arange(B, dtype=jnp.int32)
        token_ids, positions, real = last_token[slots], starts, row < count[0]
        last_rows = row
    else:
        token = jnp.arange(layout.num_tokens, dtype=jnp.int32)
        row = jnp.minimum(jnp.searchsorted(query_start[1:], token, side="right"), B - 1).astype(jnp.int32)
        real = token < query_start[B]
        token_ids, positions = tokens, jnp.where(real, starts[row] + token - query_start[row], 0)
        last_rows = jnp.maximum(query_start[1:] - 1, 0)
    page_ids = jnp.where(real, block_table[row, positions // page_size], 0)
    batch = ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        kv_len=starts + lengths,
        block_table=block_table,
        page_ids=page_ids,
        page_offsets=positions % page_size,
        last_rows=last_rows,
        num_requests=count[0],
        kind="prefill" if layout.num_tokens else "decode",
    )
    return batch, tables


def forward_step(
    model: CausalLM,
    kv_cache: tuple[jax.Array, ...],
    tables: jax.Array,
    last_token: jax.Array,
    packed: jax.Array,
    *,
    layout: ForwardLayout,
    page_size: int,
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array, jax.Array | None]:
    """One forward step.

    Returns:
        The caches, the block tables, the hidden state of each request's last token [B, D], and of all tokens [T, D]
        (None for a decode step, where they are the same).
    """
    batch, tables = unpack_forward(packed, tables, last_token, layout, page_size)
    hidden, kv_cache = model(batch, kv_cache)
    if batch.kind == "decode":
        return kv_cache, tables, hidden, None
    return kv_cache, tables, hidden[batch.last_rows], hidden


def sample_step(
    logits: jax.Array, state: SamplerState, packed: jax.Array, *, tier: SampleTier
) -> tuple[SamplerState, SampleOutput]:
    """One token for each row of logits f32[B, V]. `packed` is i32[B, NUM_COLUMNS], see batch_builder."""
    output, state = sample(logits, state, unpack_sampling(packed), tier)
    return state, output


def unpack_sampling(packed: jax.Array) -> SamplingBatch:
    def ints(column: int) -> jax.Array:
        return packed[:, column]

    def floats(column: int) -> jax.Array:
        return jax.lax.bitcast_convert_type(packed[:, column], jnp.float32)

    seeds = jax.lax.bitcast_convert_type(packed[:, columns.SEED_LOW : columns.SEED_HIGH + 1], jnp.uint32)
    return SamplingBatch(
        slot_ids=ints(columns.SLOT),
        positions=ints(columns.POSITION),
        seeds=seeds,
        temperature=floats(columns.TEMPERATURE),
        top_p=floats(columns.TOP_P),
        top_k=ints(columns.TOP_K),
        min_p=floats(columns.MIN_P),
        frequency_penalty=floats(columns.FREQUENCY),
        presence_penalty=floats(columns.PRESENCE),
        repetition_penalty=floats(columns.REPETITION),
        min_position=ints(columns.MIN_POSITION),
        has_bias=ints(columns.HAS_BIAS) != 0,
    )
