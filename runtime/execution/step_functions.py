"""What a step computes: pure functions of device state and one small host vector. `programs` compiles them.

Device state, all donated and updated in place: the KV cache, the block tables, and the sampler's state (which holds
the last sampled token of each slot, so that a decode step needs no token from the host).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from palladio.model.decoder import CausalLM
from palladio.model.forward_batch import ForwardBatch
from palladio.runtime.execution import batch_builder as columns
from palladio.runtime.execution.batch_builder import ON_DEVICE, ForwardLayout
from palladio.runtime.execution.sampler import SampleOutput, SampleTier, SamplingBatch, sample
from palladio.runtime.execution.sampler_state import SamplerState


def update_tables(tables: jax.Array, updates: jax.Array) -> jax.Array:
    """Block tables i32[slots, G·C] with the changes i32[U, 3]: (slot, column, page); zeros change the scratch slot."""
    return tables.at[updates[:, 0], updates[:, 1]].set(updates[:, 2], mode="drop")


def unpack_forward(
    packed: jax.Array, tables: jax.Array, last_token: jax.Array, layout: ForwardLayout, page_size: int
) -> tuple[ForwardBatch, jax.Array]:
    """Derives a step's ForwardBatch from its host vector and the device's state.

    Args:
        packed: i32[layout.size], see ForwardLayout.
        tables: i32[slots, G·C], the block tables of each slot.
        last_token: i32[slots], the last sampled token of each slot.

    Returns:
        The batch, and the block tables with the step's changes.
    """
    counts, slots, starts, lengths, updates, tokens = (packed[part] for part in layout.sections)
    tables = update_tables(tables, updates.reshape(-1, 3))
    block_tables = layout.split_tables(tables[slots])
    if layout.num_tokens == 0:
        return _decode_batch(last_token[slots], starts, counts[0], block_tables, page_size), tables
    B = layout.num_requests
    query_start = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])
    token = jnp.arange(layout.num_tokens, dtype=jnp.int32)
    # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
    ended = jnp.searchsorted(query_start[1:], token, side="right", method="compare_all")
    row = jnp.minimum(ended, B - 1).astype(jnp.int32)
    real = token < query_start[B]
    positions = jnp.where(real, starts[row] + token - query_start[row], 0)
    batch = ForwardBatch(
        token_ids=jnp.where(tokens == ON_DEVICE, last_token[slots[row]], tokens),
        positions=positions,
        query_start=query_start,
        kv_len=starts + lengths,
        block_tables=block_tables,
        page_ids=tuple(jnp.where(real, table[row, positions // page_size], 0) for table in block_tables),
        page_offsets=positions % page_size,
        last_rows=jnp.maximum(query_start[1:] - 1, 0),
        num_requests=counts[0],
        num_decodes=counts[1],
        kind="prefill",
    )
    return batch, tables


def _decode_batch(
    token_ids: jax.Array,
    positions: jax.Array,
    num_requests: jax.Array,
    block_tables: tuple[jax.Array, ...],
    page_size: int,
    writes: jax.Array | bool = True,
) -> ForwardBatch:
    """One token a request: token_ids and positions i32[B]; rows where `writes` is False write to the scratch page."""
    B = token_ids.shape[0]
    row = jnp.arange(B, dtype=jnp.int32)
    real = row < num_requests
    pages = [table[row, positions // page_size] for table in block_tables]
    return ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        query_start=jnp.minimum(jnp.arange(B + 1, dtype=jnp.int32), num_requests),
        kv_len=jnp.where(real, positions + 1, 0),
        block_tables=block_tables,
        page_ids=tuple(jnp.where(real & writes, ids, 0) for ids in pages),
        page_offsets=positions % page_size,
        last_rows=row,
        num_requests=num_requests,
        num_decodes=num_requests,
        kind="decode",
    )


def forward_step(
    model: CausalLM,
    kv_cache: tuple[jax.Array, ...],
    tables: jax.Array,
    last_token: jax.Array,
    packed: jax.Array,
    media: tuple[jax.Array, jax.Array] | None = None,
    *,
    layout: ForwardLayout,
    page_size: int,
) -> tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, ...], jax.Array | None]:
    """One forward step.

    Args:
        media: `embeds` and `embed_rows` of ForwardBatch; None: all tokens have the embeddings of their ids.

    Returns:
        The caches, the block tables, the hidden state of the last token of the first R requests [R, D] for each R in
        layout.sample_sizes, and that of all tokens [T, D] (None for a decode step, where they are the same).
    """
    batch, tables = unpack_forward(packed, tables, last_token, layout, page_size)
    if media is not None:
        batch = dataclasses.replace(batch, embeds=media[0], embed_rows=media[1])
    hidden, kv_cache = model(batch, kv_cache)
    if batch.kind == "decode":
        return kv_cache, tables, (hidden,), None
    last_rows = jnp.pad(batch.last_rows, (0, max(0, layout.sample_sizes[-1] - layout.num_requests)))
    last_hidden = hidden[last_rows]
    return kv_cache, tables, tuple(last_hidden[:size] for size in layout.sample_sizes), hidden


def decode_steps(
    model: CausalLM,
    state: tuple[tuple[jax.Array, ...], jax.Array, SamplerState],
    packed: jax.Array,
    packed_sampling: jax.Array,
    logits_of: Callable[[jax.Array], jax.Array],
    *,
    layout: ForwardLayout,
    page_size: int,
    tier: SampleTier,
) -> tuple[tuple[tuple[jax.Array, ...], jax.Array, SamplerState], SampleOutput]:
    """layout.num_steps decode steps, each sampling the next one's tokens.

    A row runs as many of them as its length says. After that it computes its last token again and changes nothing.

    Args:
        state: the caches, the block tables, and the sampler's state.
        packed: i32[layout.size], see ForwardLayout. packed_sampling: i32[B, NUM_COLUMNS].
        logits_of: hidden [B, D] → f32[B, V].

    Returns:
        The new state, and the outputs, stacked: token_ids i32[num_steps, B] and so on.
    """
    kv_cache, tables, sampler = state
    counts, slots, starts, lengths, updates, _ = (packed[part] for part in layout.sections)
    tables = update_tables(tables, updates.reshape(-1, 3))
    block_tables = layout.split_tables(tables[slots])
    sampling = unpack_sampling(packed_sampling)

    def step(
        carry: tuple[tuple[jax.Array, ...], SamplerState], number: jax.Array
    ) -> tuple[tuple[tuple[jax.Array, ...], SamplerState], SampleOutput]:
        kv_cache, sampler = carry
        active = number < lengths
        positions = starts + jnp.minimum(number, jnp.maximum(lengths - 1, 0))
        tokens = sampler.last_token[slots]
        batch = _decode_batch(tokens, positions, counts[0], block_tables, page_size, writes=active)
        hidden, kv_cache = model(batch, kv_cache)
        columns_now = dataclasses.replace(
            sampling, slot_ids=jnp.where(active, sampling.slot_ids, 0), positions=sampling.positions + number
        )
        output, sampler = sample(logits_of(hidden), sampler, columns_now, tier)
        return (kv_cache, sampler), output

    numbers = jnp.arange(layout.num_steps, dtype=jnp.int32)
    (kv_cache, sampler), outputs = jax.lax.scan(step, (kv_cache, sampler), numbers)
    return (kv_cache, tables, sampler), outputs


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


def page_difference(kv_cache: tuple[jax.Array, ...], pages: jax.Array, tables: Sequence[tuple[int, ...]]) -> jax.Array:
    """How much what pages[0] hold differs from what pages[1] hold, page by page.

    Args:
        kv_cache: the pool's arrays.
        pages: i32[2, G·N], N of each block table; the scratch page beside itself where there are fewer.
        tables: of each block table, the layers that go by it.

    Returns:
        f32[]: the largest |difference| / |value| of a page, in root mean square over the layers of its table.
    """
    found = []
    by_table = jnp.split(pages, len(tables), axis=1) if len(tables) > 1 else [pages]
    for layers, numbers in zip(tables, by_table, strict=True):
        difference = jnp.zeros(numbers.shape[1])
        size = jnp.full(numbers.shape[1], jnp.finfo(jnp.float32).tiny)
        for array in kv_cache[: len(layers)]:  # the others hold nothing on these pages
            fresh, cached = (array[half].astype(jnp.float32) for half in numbers)
            difference += jnp.square(fresh - cached).sum(range(1, array.ndim))
            size += jnp.square(fresh).sum(range(1, array.ndim))
        # NaN in a page is a difference, but pages of NaN everywhere would hide it in a comparison.
        found.append(jnp.nan_to_num(jnp.sqrt(difference / size), nan=jnp.inf).max())
    return functools.reduce(jnp.maximum, found)
