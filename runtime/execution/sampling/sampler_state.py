"""What the sampler remembers of each running request, on the device."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from palladio.runtime.interface.request.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROB_IDS, MAX_STOP_TOKEN_IDS

MAX_SUPPRESSED_IDS = MAX_STOP_TOKEN_IDS + 16  # a request's stop ids and the model's end-of-sequence ids


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplerState:
    """One row a slot; a running request owns one slot. Donated to every step, so it is updated in place.

    Row 0 is the scratch slot that padding rows write to: what it holds means nothing. Every row but that of
    `last_token` may hold what an earlier owner left, until `reset_slot` clears it; a request that was not reset is safe
    as long as its columns in SamplingBatch are neutral.

    Attributes:
        last_token: i32[slots], the token sampled last; the next step's input.
        output_counts: i32[slots, V], how often each token is in the output (counted by tier "full" only).
        prompt_mask: bool[slots, V], whether a token is in the prompt.
        bias_ids: i32[slots, MAX_LOGIT_BIAS], ids whose logits are biased; V for unused entries.
        bias_values: f32[slots, MAX_LOGIT_BIAS], what is added to them.
        stop_ids: i32[slots, MAX_SUPPRESSED_IDS], ids that min_tokens suppresses; V for unused entries.
        asked_ids: i32[slots, MAX_LOGPROB_IDS], ids whose log-probabilities are asked for; unused entries mean nothing.
    """

    last_token: jax.Array
    output_counts: jax.Array
    prompt_mask: jax.Array
    bias_ids: jax.Array
    bias_values: jax.Array
    stop_ids: jax.Array
    asked_ids: jax.Array

    @classmethod
    def of_last_token(cls, last_token: jax.Array) -> Self:
        """A state for the tiers that read and write nothing else."""
        nothing = jnp.zeros(0)
        return cls(last_token, *[nothing] * 6)

    def with_last_token(self, last_token: jax.Array) -> Self:
        """The same but for that. Not dataclasses.replace, which takes microseconds of each step."""
        rules = (self.bias_ids, self.bias_values, self.stop_ids, self.asked_ids)
        return type(self)(last_token, self.output_counts, self.prompt_mask, *rules)

    @classmethod
    def allocate(cls, num_slots: int, vocab_size: int) -> Self:
        """A state with empty rows.

        Args:
            num_slots: rows, the scratch slot included (so requests that can run at once, plus one).
            vocab_size: V, columns of the logits.
        """
        return cls(
            last_token=jnp.zeros(num_slots, jnp.int32),
            output_counts=jnp.zeros((num_slots, vocab_size), jnp.int32),
            prompt_mask=jnp.zeros((num_slots, vocab_size), jnp.bool_),
            bias_ids=jnp.full((num_slots, MAX_LOGIT_BIAS), vocab_size, jnp.int32),
            bias_values=jnp.zeros((num_slots, MAX_LOGIT_BIAS), jnp.float32),
            stop_ids=jnp.full((num_slots, MAX_SUPPRESSED_IDS), vocab_size, jnp.int32),
            asked_ids=jnp.zeros((num_slots, MAX_LOGPROB_IDS), jnp.int32),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotTokens:
    """A chunk of a request's tokens for `reset_slot`; a long request takes several.

    Attributes:
        token_ids: i32[L]
        is_prompt: bool[L], whether the token is of the prompt; the others are output.
        length: i32[], how many of the L are real.
        first: bool[], whether this is the request's first chunk: it clears the row.
    """

    token_ids: jax.Array
    is_prompt: jax.Array
    length: jax.Array
    first: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlotRules:
    """The sparse rules of a request for `reset_slot`; padding ids are V. `slot_rules` makes it.

    Attributes:
        bias_ids: i32[MAX_LOGIT_BIAS], each id once.
        bias_values: f32[MAX_LOGIT_BIAS]
        stop_ids: i32[MAX_SUPPRESSED_IDS]
        asked_ids: i32[MAX_LOGPROB_IDS], padded with zeros.
    """

    bias_ids: jax.Array | np.ndarray
    bias_values: jax.Array | np.ndarray
    stop_ids: jax.Array | np.ndarray
    asked_ids: jax.Array | np.ndarray


def reset_slot(state: SamplerState, slot: jax.Array, tokens: SlotTokens, rules: SlotRules) -> SamplerState:
    """Fills a slot's row for a request that uses penalties, logit_bias, min_tokens or logprob_token_ids.

    Called once a chunk of the request's tokens (at least once, if only with length 0), before it samples; again after
    a retraction, with the output so far counted as output. Jit it with `state` donated.

    Args:
        slot: i32[].
    """
    vocab_size = state.output_counts.shape[1]
    real = jnp.arange(tokens.token_ids.shape[0]) < tokens.length
    prompt_ids = jnp.where(real & tokens.is_prompt, tokens.token_ids, vocab_size)
    output_ids = jnp.where(real & ~tokens.is_prompt, tokens.token_ids, vocab_size)
    mask_row = state.prompt_mask[slot] & ~tokens.first
    counts_row = jnp.where(tokens.first, 0, state.output_counts[slot])
    return dataclasses.replace(
        state,
        output_counts=state.output_counts.at[slot].set(counts_row.at[output_ids].add(1, mode="drop")),
        prompt_mask=state.prompt_mask.at[slot].set(mask_row.at[prompt_ids].set(True, mode="drop")),
        bias_ids=state.bias_ids.at[slot].set(rules.bias_ids),
        bias_values=state.bias_values.at[slot].set(rules.bias_values),
        stop_ids=state.stop_ids.at[slot].set(rules.stop_ids),
        asked_ids=state.asked_ids.at[slot].set(rules.asked_ids),
    )
