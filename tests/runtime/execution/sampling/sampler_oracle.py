"""The oracle of the sampler: float64, by sorting; and makers of its arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from palladio.runtime.execution.batch.batch_builder import split_seed
from palladio.runtime.execution.sampling.sampler import SamplingBatch, processed_logits, sample
from palladio.runtime.execution.sampling.sampler_state import MAX_SUPPRESSED_IDS, SamplerState
from palladio.runtime.interface.request.sampling_params import MAX_LOGIT_BIAS

V = 300
INT_COLUMNS = {"slot_ids": 0, "positions": 7, "top_k": -1, "min_position": 0}
FLOAT_COLUMNS = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
jit_sample = jax.jit(sample, static_argnames="tier")
jit_processed = jax.jit(processed_logits, static_argnames="tier")


def make_batch(*rows, **common):
    """A SamplingBatch of dicts of columns; `seed` is an int."""
    rows = [common | row for row in (rows or ({},))]
    columns = {k: jnp.array([r.get(k, d) for r in rows], jnp.int32) for k, d in INT_COLUMNS.items()}
    columns |= {k: jnp.array([r.get(k, d) for r in rows], jnp.float32) for k, d in FLOAT_COLUMNS.items()}
    columns["has_bias"] = jnp.array([r.get("has_bias", False) for r in rows])
    columns["seeds"] = jnp.array([split_seed(r.get("seed", 0)) for r in rows], jnp.uint32)
    return SamplingBatch(**columns)


def random_logits(num_rows, vocab_size=V, scale=3.0, seed=0):
    return np.random.default_rng(seed).normal(0, scale, (num_rows, vocab_size)).astype(np.float32)


def state_with(slot, *, num_slots=4, vocab_size=V, bias=(), stop_ids=(), prompt=(), output=()):
    """A state whose row `slot` is filled by hand, not by reset_slot."""
    state = SamplerState.allocate(num_slots, vocab_size)
    ids = np.full(MAX_LOGIT_BIAS, vocab_size, np.int32)
    values = np.zeros(MAX_LOGIT_BIAS, np.float32)
    for i, (token_id, value) in enumerate(dict(bias).items()):
        ids[i], values[i] = token_id, value
    stops = np.full(MAX_SUPPRESSED_IDS, vocab_size, np.int32)
    stops[: len(stop_ids)] = stop_ids
    return dataclasses.replace(
        state,
        bias_ids=state.bias_ids.at[slot].set(ids),
        bias_values=state.bias_values.at[slot].set(values),
        stop_ids=state.stop_ids.at[slot].set(stops),
        prompt_mask=state.prompt_mask.at[slot, jnp.array(prompt, jnp.int32)].set(True),
        output_counts=state.output_counts.at[slot].set(np.bincount(np.array(output, int), minlength=vocab_size)),
    )


def oracle_logits(logits, *, bias=(), stop_ids=(), prompt=(), output=(), **p):
    """Logits after bias, suppression and penalties, float64."""
    x = logits.astype(np.float64)
    for token_id, value in dict(bias).items():
        x[token_id] += value
    if p.get("positions", 7) < p.get("min_position", 0):
        x[list(stop_ids)] = -np.inf
    repetition = p.get("repetition_penalty", 1.0)
    for token_id in {*prompt, *output}:
        x[token_id] = x[token_id] / repetition if x[token_id] > 0 else x[token_id] * repetition
    for token_id in output:
        x[token_id] -= p.get("frequency_penalty", 0.0)
    for token_id in set(output):
        x[token_id] -= p.get("presence_penalty", 0.0)
    return x


def oracle_probabilities(logits, *, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0, **p):
    """The distribution sampled from, by sorting, float64."""
    x = oracle_logits(logits, **p)
    probs = np.exp((x - x.max()) / temperature)
    probs /= probs.sum()
    if 0 < top_k < len(x):
        probs[x < np.sort(x)[-top_k]] = 0
    if top_p < 1:
        probs /= probs.sum()
        descending = np.sort(probs)[::-1]
        last = np.searchsorted(np.cumsum(descending), top_p)
        probs[probs < descending[last]] = 0
    probs[probs < min_p * probs.max()] = 0
    return probs / probs.sum()
