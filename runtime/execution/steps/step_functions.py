"""What a step computes: pure functions of device state and one small host vector. `programs` compiles them.

Device state, all donated and updated in place: the KV cache, the block tables, how many tokens each slot's request has
in the cache, and the sampler's state (which holds the last sampled token of each slot). So a decode step needs neither
tokens nor positions from the host. What it derives from lengths it checks: a row that has come to the end that the host
has reserved pages for is one of the scratch slot (an index out of range would be clamped, and hit a page in use).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.paged_cache import page_values
from palladio.model.functional import Model
from palladio.runtime.execution.batch import batch_builder as columns
from palladio.runtime.execution.batch.batch_builder import ON_DEVICE, ForwardLayout
from palladio.runtime.execution.sampling.sampler import SampleOutput, SamplerTarget, SampleTier, SamplingBatch, sample
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.state.device_state import SlotInputs

StepState = tuple[tuple[jax.Array, ...], jax.Array, jax.Array, jax.Array | None]
"""The caches, the block tables i32[slots, G·C], the lengths i32[slots], and the pages' tokens i32[P, S], if kept."""


def update_tables(tables: jax.Array, updates: jax.Array) -> jax.Array:
    """Block tables i32[slots, G·C] with the changes i32[U, 3]: (slot, column, page); zeros change the scratch slot."""
    return tables.at[updates[:, 0], updates[:, 1]].set(updates[:, 2], mode="drop")


def unpack_forward(
    packed: jax.Array,
    tables: jax.Array,
    lengths: jax.Array,
    inputs: SlotInputs,
    layout: ForwardLayout,
    page_size: int,
) -> tuple[ForwardBatch, jax.Array, jax.Array]:
    """Derives a step's ForwardBatch from its host vector and the device's state.

    Args:
        packed: i32[layout.size], see ForwardLayout.
        tables: i32[slots, G·C], the block tables of each slot.
        lengths: i32[slots], tokens of each slot in the cache.
        inputs: what decode rows compute.

    Returns:
        The batch, the block tables with the step's changes, and the lengths after the step.
    """
    counts, slots, starts, ends, updates, tokens = (packed[part] for part in layout.sections)
    tables = update_tables(tables, updates.reshape(-1, 3))
    if layout.num_tokens == 0:
        positions, active = _next_positions(lengths, slots, ends)
        block_tables = layout.split_tables(tables[slots])
        batch = _decode_batch(inputs.last_token[slots], positions, counts[0], block_tables, page_size, active, slots)
        return batch, tables, _lengthened(lengths, slots, positions, active)
    B = layout.num_requests
    decodes = starts <= ON_DEVICE
    drafts = ON_DEVICE - starts if inputs.drafts is not None else None
    starts = jnp.where(decodes, lengths[slots], starts)
    owners = jnp.where(starts < ends, slots, 0)  # the scratch slot's table is the scratch page's
    block_tables = layout.split_tables(tables[owners])
    counted = jnp.where(decodes, 1 if drafts is None else 1 + drafts_of(inputs, slots, drafts), ends - starts)
    starts = jnp.where(starts < ends, starts, 0)
    query_start = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counted, dtype=jnp.int32)])
    token = jnp.arange(layout.num_tokens, dtype=jnp.int32)
    # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
    ended = jnp.searchsorted(query_start[1:], token, side="right", method="compare_all")
    row = jnp.minimum(ended, B - 1).astype(jnp.int32)
    real = token < query_start[B]
    positions = jnp.where(real, starts[row] + token - query_start[row], 0)
    token_ids = jnp.where(tokens == ON_DEVICE, inputs.last_token[slots[row]], tokens)
    if inputs.drafts is not None:
        offset = token - query_start[row]  # these rows' tokens are nowhere in the host's vector
        known = jnp.concatenate([inputs.last_token[:, None], inputs.drafts], axis=1)
        token_ids = jnp.where(decodes[row], known[slots[row], jnp.minimum(offset, known.shape[1] - 1)], token_ids)
    batch = ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        kv_len=starts + counted,
        block_tables=block_tables,
        page_ids=tuple(jnp.where(real, table[row, positions // page_size], 0) for table in block_tables),
        page_offsets=positions % page_size,
        last_rows=jnp.maximum(query_start[1:] - 1, 0),
        num_requests=counts[0],
        num_decodes=counts[1],
        kind="prefill",
        slots=owners,
    )
    confirmed = batch.kv_len if inputs.drafts is None else jnp.where(decodes, starts + 1, batch.kv_len)
    return batch, tables, lengths.at[owners].set(confirmed)


def drafts_of(inputs: SlotInputs, slots: jax.Array, most: jax.Array) -> jax.Array:
    """The number of drafts of each row, i32[B].

    Args:
        most: i32[B], the most drafts that the row may have.
    """
    assert inputs.num_drafts is not None, "it comes with the drafts"
    return jnp.where(most > 0, inputs.num_drafts[slots], 0)


def _next_positions(lengths: jax.Array, slots: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positions i32[B] of decoding rows' last tokens, and whether these come before `ends`; 0 for other rows."""
    positions = lengths[slots]
    active = positions < ends
    return jnp.where(active, positions, 0), active


def _lengthened(lengths: jax.Array, slots: jax.Array, positions: jax.Array, active: jax.Array) -> jax.Array:
    """The lengths after tokens at these positions were computed."""
    return lengths.at[jnp.where(active, slots, 0)].set(positions + 1)


def _decode_batch(
    token_ids: jax.Array,
    positions: jax.Array,
    num_requests: jax.Array,
    block_tables: tuple[jax.Array, ...],
    page_size: int,
    active: jax.Array,
    slots: jax.Array,
) -> ForwardBatch:
    """One token a request: token_ids, positions and slots i32[B]; rows that are not `active` write to the scratch page,
    and are of the scratch slot."""
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
        page_ids=tuple(jnp.where(real & active, ids, 0) for ids in pages),
        page_offsets=positions % page_size,
        last_rows=row,
        num_requests=num_requests,
        num_decodes=num_requests,
        kind="decode",
        slots=jnp.where(real & active, slots, 0),
    )


def forward_step(
    model: Model,
    state: StepState,
    inputs: SlotInputs,
    packed: jax.Array,
    media: tuple[jax.Array, jax.Array] | None = None,
    *,
    layout: ForwardLayout,
    page_size: int,
) -> tuple[StepState, tuple[jax.Array, ...], jax.Array | None]:
    """One forward step.

    Args:
        media: `embeds` and `embed_rows` of ForwardBatch; None: all tokens have the embeddings of their ids.

    Returns:
        The new state, the hidden state of the last token of the first R requests [R, D] for each R in
        layout.sample_sizes, and that of all tokens [T, D] (None for a decode step, where they are the same).
    """
    kv_cache, tables, lengths, page_tokens = state
    batch, tables, lengths = unpack_forward(packed, tables, lengths, inputs, layout, page_size)
    if media is not None:
        batch = dataclasses.replace(batch, embeds=media[0], embed_rows=media[1])
    if page_tokens is not None:
        page_tokens = page_tokens.at[batch.page_ids[0], batch.page_offsets].set(batch.token_ids)
    hidden, kv_cache = model(batch, kv_cache)
    state = kv_cache, tables, lengths, page_tokens
    if batch.kind == "decode":
        return state, (hidden,), None
    last_rows = jnp.pad(batch.last_rows, (0, max(0, layout.sample_sizes[-1] - layout.num_requests)))
    last_hidden = hidden[last_rows]
    return state, tuple(last_hidden[:size] for size in layout.sample_sizes), hidden


def decode_steps(
    model: Model,
    state: tuple[tuple[jax.Array, ...], jax.Array, jax.Array, SamplerState],
    packed: jax.Array,
    packed_sampling: jax.Array,
    logits_of: Callable[[jax.Array], jax.Array],
    *,
    layout: ForwardLayout,
    page_size: int,
    tier: SampleTier,
    target: SamplerTarget,
) -> tuple[tuple[tuple[jax.Array, ...], jax.Array, jax.Array, SamplerState], SampleOutput]:
    """layout.num_steps decode steps, each sampling the next one's tokens; or one, whose output is that of `sample`; or
    as many as the row with most tokens has, layout.max_passes at most.

    A row runs until it comes to its end. After that it changes nothing.

    Args:
        state: the caches, the block tables, the lengths, and the sampler's state.
        packed: i32[layout.size], see ForwardLayout. packed_sampling: i32[B, NUM_COLUMNS].
        logits_of: hidden [B, D] → f32[B, V].
        target: of the sampler.

    Returns:
        The new state, and the outputs, of several steps stacked: token_ids i32[num_steps, B] and so on; and how many
        each row has.
    """
    kv_cache, tables, lengths, sampler = state
    counts, slots, _, ends, updates, _ = (packed[part] for part in layout.sections)
    tables = update_tables(tables, updates.reshape(-1, 3))
    block_tables = layout.split_tables(tables[slots])
    sampling = unpack_sampling(packed_sampling, lengths)

    def step(
        carry: tuple[tuple[jax.Array, ...], jax.Array, SamplerState], _: None
    ) -> tuple[tuple[tuple[jax.Array, ...], jax.Array, SamplerState], SampleOutput]:
        kv_cache, lengths, sampler = carry
        positions, active = _next_positions(lengths, slots, ends)
        batch = _decode_batch(sampler.last_token[slots], positions, counts[0], block_tables, page_size, active, slots)
        hidden, kv_cache = model(batch, kv_cache)
        columns_now = dataclasses.replace(
            sampling, slot_ids=jnp.where(active, sampling.slot_ids, 0), positions=positions + 1
        )
        output, sampler = sample(logits_of(hidden), sampler, columns_now, tier, target=target)
        return (kv_cache, _lengthened(lengths, slots, positions, active), sampler), output

    carry = kv_cache, lengths, sampler
    if layout.max_passes > 1:
        (kv_cache, new_lengths, sampler), outputs = _while_rows_go_on(step, carry, slots, ends, layout)
        outputs = dataclasses.replace(outputs, counts=new_lengths[slots] - lengths[slots])
        return (kv_cache, tables, new_lengths, sampler), outputs
    if layout.num_steps == 1:
        (kv_cache, lengths, sampler), output = step(carry, None)
        return (kv_cache, tables, lengths, sampler), output
    (kv_cache, new_lengths, sampler), outputs = jax.lax.scan(step, carry, length=layout.num_steps)
    outputs = dataclasses.replace(outputs, counts=new_lengths[slots] - lengths[slots])
    return (kv_cache, tables, new_lengths, sampler), outputs


def _while_rows_go_on(
    step: Callable[[Any, None], tuple[Any, SampleOutput]],
    carry: tuple[tuple[jax.Array, ...], jax.Array, SamplerState],
    slots: jax.Array,
    ends: jax.Array,
    layout: ForwardLayout,
) -> tuple[tuple[tuple[jax.Array, ...], jax.Array, SamplerState], SampleOutput]:
    """Steps of `decode_steps` until all rows have come to their ends. On an accelerator its host would have to look
    before each of them."""
    shape = (layout.max_passes, layout.num_requests)

    def goes_on(now: tuple[jax.Array, Any, SampleOutput]) -> jax.Array:
        number, (_, lengths, _), _ = now
        has_row: jax.Array = (lengths[slots] < ends).any()
        return (number < layout.max_passes) & has_row

    def run(now: tuple[jax.Array, Any, SampleOutput]) -> tuple[jax.Array, Any, SampleOutput]:
        number, carry, outputs = now
        carry, output = step(carry, None)
        return number + 1, carry, jax.tree.map(lambda all_of, one: all_of.at[number].set(one), outputs, output)

    outputs = SampleOutput(jnp.zeros(shape, jnp.int32), jnp.ones(shape, jnp.bool_))
    _, carry, outputs = jax.lax.while_loop(goes_on, run, (jnp.int32(0), carry, outputs))
    return carry, outputs


def unpack_sampling(packed: jax.Array, lengths: jax.Array) -> SamplingBatch:
    """A step's sampling columns.

    Args:
        packed: i32[B, NUM_COLUMNS].
        lengths: i32[slots], see DeviceState: where the next token of each slot's request will be.
    """

    def ints(column: int) -> jax.Array:
        return packed[:, column]

    def floats(column: int) -> jax.Array:
        return jax.lax.bitcast_convert_type(packed[:, column], jnp.float32)

    seeds = jax.lax.bitcast_convert_type(packed[:, columns.SEED_LOW : columns.SEED_HIGH + 1], jnp.uint32)
    return SamplingBatch(
        slot_ids=ints(columns.SLOT),
        positions=lengths[ints(columns.SLOT)],
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


def copy_states(states: Any, sources: jax.Array, targets: jax.Array) -> Any:
    """States of slots as those of others, one copy after the other.

    Args:
        states: arrays [S, …]. sources, targets: i32[N], slots; the scratch slot as both where there are fewer copies.
    """

    def copy(array: jax.Array) -> jax.Array:
        for number in range(sources.shape[0]):  # a scatter would copy all of it on some targets
            row = jax.lax.dynamic_index_in_dim(array, sources[number], keepdims=False)
            array = jax.lax.dynamic_update_index_in_dim(array, row, targets[number], 0)
        return array

    return jax.tree.map(copy, states)


def state_difference(states: Any, slots: jax.Array) -> jax.Array:
    """How much the states of slots[0] differ from those of slots[1], as in page_difference; of the worst array.

    Args:
        states: arrays [S, …]. slots: i32[2]; the scratch slot twice: nothing is compared.
    """

    def differ(array: jax.Array) -> jax.Array:
        fresh, copied = (array[slot].astype(jnp.float32) for slot in slots)
        size = jnp.square(fresh).sum() + jnp.finfo(jnp.float32).tiny
        return jnp.nan_to_num(jnp.sqrt(jnp.square(fresh - copied).sum() / size), nan=jnp.inf)

    return functools.reduce(jnp.maximum, [differ(array) for array in jax.tree.leaves(states)])


def page_difference(kv_cache: tuple[jax.Array, ...], pages: jax.Array, tables: Sequence[tuple[int, ...]]) -> jax.Array:
    """How much what pages[0] hold differs from what pages[1] hold, page by page.

    Args:
        kv_cache: the pool's arrays.
        pages: i32[2, G·N], N of each block table; the scratch page twice where there are fewer.
        tables: for each block table, the layers that use it.

    Returns:
        f32[]: the largest |difference| / |value| of a page, in root mean square over the layers of its table.
    """
    found = []
    by_table = jnp.split(pages, len(tables), axis=1) if len(tables) > 1 else [pages]
    for layers, numbers in zip(tables, by_table, strict=True):
        difference = jnp.zeros(numbers.shape[1])
        size = jnp.full(numbers.shape[1], jnp.finfo(jnp.float32).tiny)
        for array in kv_cache[: len(layers)]:  # the others hold nothing on these pages
            fresh, cached = (jax.vmap(functools.partial(page_values, array))(half) for half in numbers)
            difference += jnp.square(fresh - cached).sum(range(1, fresh.ndim))
            size += jnp.square(fresh).sum(range(1, fresh.ndim))
        # NaN in a page is a difference, but pages of NaN everywhere would hide it in a comparison.
        found.append(jnp.nan_to_num(jnp.sqrt(difference / size), nan=jnp.inf).max())
    return functools.reduce(jnp.maximum, found)
