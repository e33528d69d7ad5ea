"""Drafts on the device: how they are proposed, and which of them are kept: pure functions, which `draft_programs`
compiles.

The sampler decides: it draws a token at each position in order, and a draft is right if it is the token drawn there.
The noise of a draw depends on seed and position alone, so the tokens are those of steps without drafts.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from palladio.runtime.execution.batch.batch_builder import ON_DEVICE, ForwardLayout
from palladio.runtime.execution.sampling.sampler import ON_ONE_DEVICE, SampleOutput, SamplerTarget, SampleTier, sample
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.state.device_state import SlotInputs
from palladio.runtime.execution.state.proposer import KnownTokens, Proposer
from palladio.runtime.execution.steps.step_functions import unpack_sampling

MOST_SEARCHED = 2**21  # tokens that a step looks through: 128k of 16 requests, 8k of 256; each costs 4 bytes of memory


def propose_drafts(
    drafts: tuple[jax.Array, jax.Array],
    known: tuple[jax.Array, ...],
    packed: jax.Array,
    proposer: Proposer,
    *,
    layout: ForwardLayout,
    num_rows: int,
    num_columns: int,
    window: int | None,
    most_searched: int = MOST_SEARCHED,
) -> tuple[jax.Array, jax.Array]:
    """The drafts of a step's rows, before its forward pass. No draft is for a position at a row's end or beyond.

    The proposer sees the newest tokens of each row, as many pages as its share of `most_searched` has.

    Args:
        drafts: of each slot, and how many, see SlotInputs.
        known: last_token and lengths i32[slots], the block tables and page_tokens, see DeviceState.
        packed: i32[layout.size], of the forward pass.
        num_rows: rows of the step, of which the layout may hold more.
        num_columns: of a block table.
        window: tokens that the first block table keeps; None: all.
        most_searched: tokens of all rows together, at most, but for a page of each.

    Returns:
        The new `drafts`.
    """
    last_token, lengths, tables, page_tokens = known
    _, slots, starts, ends, _, _ = (packed[part] for part in layout.sections)
    slots, starts, ends = slots[:num_rows], starts[:num_rows], ends[:num_rows]
    last, page_size = lengths[slots], page_tokens.shape[1]
    num_searched = min(num_columns, max(1, most_searched // (num_rows * page_size)))
    column = jnp.maximum(last // page_size + 1 - num_searched, 0)
    columns = column[:, None] + jnp.arange(num_searched, dtype=jnp.int32)
    token_ids = page_tokens[tables[slots[:, None], columns]].reshape(num_rows, -1)
    first = jnp.zeros_like(last) if window is None else jnp.maximum(last - window + 1, 0)
    newest, first = last - column * page_size, jnp.maximum(first - column * page_size, 0)
    place = jnp.arange(token_ids.shape[1], dtype=jnp.int32)[None]
    token_ids = jnp.where(place == newest[:, None], last_token[slots][:, None], token_ids)
    proposed, count = proposer.propose(KnownTokens(token_ids, first, newest))
    count = jnp.clip(jnp.minimum(count, ends - 1 - last), 0, jnp.maximum(ON_DEVICE - starts, 0))
    return drafts[0].at[slots].set(proposed), drafts[1].at[slots].set(count)


def verify_drafts(
    logits_of: Callable[[jax.Array], jax.Array],
    state: tuple[jax.Array, SamplerState],
    hidden: jax.Array,
    inputs: SlotInputs,
    packed: jax.Array,
    tier: SampleTier,
    allowed: jax.Array | None = None,
    *,
    target: SamplerTarget = ON_ONE_DEVICE,
) -> tuple[jax.Array, SamplerState, SampleOutput]:
    """Samples at each token of each row, as long as the drafts so far are what was sampled.

    Args:
        logits_of: hidden [B, D] → f32[B, V].
        state: lengths i32[slots], of each request up to the first token of its row; and the sampler's state.
        hidden: [T, D], of all tokens of the step.
        inputs: what its rows computed.
        packed: i32[B, NUM_COLUMNS]. allowed: as for `sample`; of rows without drafts only.
        target: of the sampler.

    Returns:
        The lengths, the sampler's state, and the outputs, stacked.
    """
    assert inputs.drafts is not None
    assert inputs.num_drafts is not None
    lengths, sampler = state
    columns = unpack_sampling(packed, lengths)
    slots = columns.slot_ids
    drafts, num_drafts = inputs.drafts[slots], inputs.num_drafts[slots]
    drafts = jnp.pad(drafts, ((0, 0), (0, 1)))
    first = jnp.cumsum(num_drafts + 1) - num_drafts - 1

    def step(
        carry: tuple[SamplerState, jax.Array, jax.Array], number: jax.Array
    ) -> tuple[tuple[SamplerState, jax.Array, jax.Array], SampleOutput]:
        sampler, active, count = carry
        logits = logits_of(hidden[jnp.minimum(first + number, hidden.shape[0] - 1)])
        columns_now = dataclasses.replace(
            columns, slot_ids=jnp.where(active, slots, 0), positions=columns.positions + number
        )
        output, sampler = sample(logits, sampler, columns_now, tier, allowed, target=target)
        is_right = (number < num_drafts) & (output.token_ids == drafts[:, number])
        return (sampler, active & is_right, count + active), output

    numbers = jnp.arange(drafts.shape[1], dtype=jnp.int32)
    carry = sampler, jnp.ones_like(slots, jnp.bool_), jnp.zeros_like(slots)
    (sampler, _, counts), outputs = jax.lax.scan(step, carry, numbers)
    lengths = lengths.at[slots].set(columns.positions + counts - 1)
    return lengths, sampler, dataclasses.replace(outputs, counts=counts)
