"""The sampler: logits in, tokens out, on the device; one compiled program a tier.

What happens to a row of logits, in order:

0. tokens that the request's grammar forbids are dropped;
1. logit_bias is added;
2. stop ids are suppressed until min_tokens is reached, unless the grammar allows nothing else;
3. the penalties: repetition, then frequency and presence;
4. a greedy row (temperature below 1e-6, or top_k 1) takes the largest, the lowest id of equals, and is done;
5. temperature;
6. top_k keeps the k likeliest tokens;
7. top_p keeps the smallest set of the likeliest whose share reaches top_p, of the mass that top_k left;
8. min_p drops tokens less likely than min_p times the likeliest;
9. one token is drawn from what is left.

The order is that of Hugging Face and SGLang. (vLLM takes min_p before top_k and top_p: there top_p sees the mass that
min_p left. min_p after top_p drops the same tokens whether or not one renormalizes in between.) Tokens of equal logit
share a fate: top_k and top_p keep all that are equal to the last one kept.

Neither top_k nor top_p sorts: both find their threshold bit by bit among the ordered 32-bit integers that float32
values map to, which is exact, and they weigh tokens by integers, whose sums don't depend on the order of summation.
So a threshold is the same in every program, whatever the batch's size.

The draw is argmax(logit + Gumbel noise), and the noise is a function of (seed, position, token id) alone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.model.base.sharding import num_shards
from palladio.pallas_kernels.row_argmax import row_argmax
from palladio.pallas_kernels.target import Target
from palladio.runtime.execution.sampling.draws import along, gumbel_noise, largest_threshold, ordered_image, sum_rows
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.sampling.scoring import token_logprobs
from palladio.runtime.execution.sampling.whole_rows import on_whole_rows
from palladio.runtime.interface.request.sampling_params import GREEDY_TEMPERATURE

SampleTier = Literal["greedy", "plain", "random", "masked", "full"]
TIERS: tuple[SampleTier, ...] = ("greedy", "plain", "random", "masked", "full")  # each can do what those before it can
MASKED_TIERS: tuple[SampleTier, ...] = ("masked", "full")  # those that take a mask of allowed tokens

MASK_BITS = 32  # tokens that a word of a mask stands for
_MAX_TEMPERATURE = 1e30  # uniform long before; 1 / temperature must not underflow
# Bytes of a device's logits that a TPU exchanges for whole rows: with more, its links take longer than 11 or 22 sums.
_MOST_EXCHANGED = 8 * 2**20
_MASS_BITS = 30  # integer weights of a row sum to less than 2**30 (and rounding), which int32 holds


@dataclasses.dataclass(frozen=True)
class SamplerTarget:
    """What the sampler is compiled for.

    Attributes:
        mesh: whose groups of devices have a part each of the logits' vocabulary; None: one device has all.
        kind: the kind of the devices.
    """

    mesh: Mesh | None = None
    kind: Target = Target()


ON_ONE_DEVICE = SamplerTarget()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingBatch:
    """One step's sampling columns; rows as in ForwardBatch.

    Attributes:
        slot_ids: i32[B], each request's row of SamplerState; 0 (scratch) for padding rows and for rows whose token
            must not count (a chunk of the prompt that isn't the last).
        positions: i32[B], position in the sequence of the token to sample: prompt length + tokens generated so far.
        seeds: u32[B, 2], low and high word of the request's seed; see `batch_builder.split_seed`.
        temperature: f32[B], below 1e-6 is greedy.
        top_p: f32[B], 1 is off.
        top_k: i32[B], below 1 is off.
        min_p: f32[B], 0 is off.
        frequency_penalty: f32[B], 0 is off.
        presence_penalty: f32[B], 0 is off.
        repetition_penalty: f32[B], 1 is off.
        min_position: i32[B], the slot's stop_ids are suppressed while positions < min_position; 0 is off.
        has_bias: bool[B], whether the slot's logit_bias is this request's (else it may be a former owner's).
    """

    slot_ids: jax.Array
    positions: jax.Array
    seeds: jax.Array
    temperature: jax.Array
    top_p: jax.Array
    top_k: jax.Array
    min_p: jax.Array
    frequency_penalty: jax.Array
    presence_penalty: jax.Array
    repetition_penalty: jax.Array
    min_position: jax.Array
    has_bias: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleOutput:
    """What a step sampled, on the device. The host converts it once (`reading.read_batch`), to TokenOutput.

    Attributes:
        token_ids: i32[B].
        is_finite: bool[B], false if the row's logits hold NaN or +inf or nothing but -inf; its token is then junk
            (but a valid id).
        logprobs: f32[B], log-softmax of the chosen token under the incoming logits; tier "full" only.
        top_ids: i32[B, 20], the likeliest tokens under the incoming logits, best first; tier "full" only.
        top_logprobs: f32[B, 20], theirs; tier "full" only.
        asked_logprobs: f32[B, K], those of the slots' asked_ids; tier "full" only.
        counts: i32[B], where a row may have several tokens: how many. The other arrays are stacked then, [most, B, …].
    """

    token_ids: jax.Array
    is_finite: jax.Array
    logprobs: jax.Array | None = None
    top_ids: jax.Array | None = None
    top_logprobs: jax.Array | None = None
    asked_logprobs: jax.Array | None = None
    counts: jax.Array | None = None


def sample(
    logits: jax.Array,
    state: SamplerState,
    batch: SamplingBatch,
    tier: SampleTier,
    allowed: jax.Array | None = None,
    target: SamplerTarget = ON_ONE_DEVICE,
) -> tuple[SampleOutput, SamplerState]:
    """Samples one token a row. Jit it with `tier` static and `state` donated.

    A row gives the same token in every tier that knows all its parameters. A request with penalties must run every
    step in tier "full", which alone counts its output.

    Args:
        logits: f32[B, V]; ids that are no tokens hold -inf.
        tier: static; "greedy" knows no parameter, "plain" temperature, "random" also top_k, top_p and min_p, "masked"
            these and `allowed`, "full" all.
        allowed: i32[B, ⌈V / 32⌉], a bit a token, the lowest first: those that a row may sample, one at
            least; None: all.
        target: static.

    Returns:
        The output, and the state with last_token (tier "full": and output_counts) updated at slot_ids.
    """
    if tier == "greedy":
        token_ids, are_finite = row_argmax(logits, target=target.kind)
    else:
        permitted = logits if allowed is None else drop_forbidden(logits, allowed)
        scores = processed_logits(permitted, state, batch, tier, target.mesh)
        noise = gumbel_noise(batch.seeds, batch.positions, logits.shape[1])
        scores = jnp.where(_is_greedy(batch)[:, None], scores, scores + noise)
        token_ids, _ = row_argmax(scores, is_computed=True, target=target.kind)
        _, are_finite = row_argmax(logits, target=target.kind)
    last_token = state.last_token.at[batch.slot_ids].set(token_ids)
    if tier != "full":
        output = SampleOutput(token_ids, are_finite)
        return output, dataclasses.replace(state, last_token=last_token)
    logprobs = token_logprobs(logits, token_ids, state.asked_ids[batch.slot_ids])
    output = SampleOutput(token_ids, are_finite, *logprobs)
    output_counts = state.output_counts.at[batch.slot_ids, token_ids].add(1)
    return output, dataclasses.replace(state, last_token=last_token, output_counts=output_counts)


def drop_forbidden(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """-inf for the tokens whose bit is not set.

    Args:
        logits: f32[B, V].
        allowed: i32[B, ⌈V / 32⌉], see `sample`.

    Returns:
        f32[B, V].
    """
    bits = (allowed[:, :, None] >> jnp.arange(MASK_BITS, dtype=jnp.int32)) & 1
    bits = bits.reshape(allowed.shape[0], -1)[:, : logits.shape[1]]
    return jnp.where(bits != 0, logits, -jnp.inf)


def processed_logits(
    logits: jax.Array, state: SamplerState, batch: SamplingBatch, tier: SampleTier, mesh: Mesh | None = None
) -> jax.Array:
    """Logits whose softmax is the distribution that a random row samples from, up to a constant; -inf where dropped.

    A greedy row keeps its logits after bias, suppression and penalties.

    Args:
        logits: f32[B, V].
        tier: any but "greedy".
        mesh: see SamplerTarget.

    Returns:
        f32[B, V].
    """
    if tier == "full":
        logits = _adjust(logits, state, batch)
    is_greedy = _is_greedy(batch)
    temperature = jnp.where(is_greedy, 1.0, jnp.minimum(batch.temperature, _MAX_TEMPERATURE))
    largest = logits.max(axis=-1)
    tempered = (logits - largest[:, None]) / temperature[:, None]  # ≤ 0 and 0 at the largest: can't overflow upwards
    if tier == "plain":
        return jnp.where(is_greedy[:, None], logits, tempered)
    top_k = jnp.where(is_greedy | (batch.top_k >= logits.shape[1]), 0, batch.top_k)
    top_p = jnp.where(is_greedy, 1.0, batch.top_p)
    threshold = _thresholds(logits, (largest, temperature, top_k, top_p), mesh)
    keep = (ordered_image(logits) >= threshold[:, None]) & (tempered >= jnp.log(batch.min_p)[:, None])
    return jnp.where(is_greedy[:, None], logits, jnp.where(keep, tempered, -jnp.inf))


def _is_greedy(batch: SamplingBatch) -> jax.Array:
    """bool[B]"""
    return (batch.temperature < GREEDY_TEMPERATURE) | (batch.top_k == 1)


def _adjust(logits: jax.Array, state: SamplerState, batch: SamplingBatch) -> jax.Array:
    """Adds the bias, suppresses stop ids, takes the penalties off; bit-equal for rows that use none. f32[B, V]"""
    vocab_size = logits.shape[1]
    row = jnp.arange(logits.shape[0])[:, None]
    slots = batch.slot_ids
    bias_ids = jnp.where(batch.has_bias[:, None], state.bias_ids[slots], vocab_size)
    logits = logits.at[row, bias_ids].add(state.bias_values[slots], mode="drop")
    too_early = batch.positions < batch.min_position
    stop_ids = jnp.where(too_early[:, None], state.stop_ids[slots], vocab_size)
    suppressed = logits.at[row, stop_ids].set(-jnp.inf, mode="drop")
    has_others = jnp.isfinite(suppressed).any(axis=-1, keepdims=True)  # a grammar may leave nothing else
    logits = jnp.where(has_others, suppressed, logits)

    counts = _rows(state.output_counts, slots)
    seen = counts > 0
    repetition = batch.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    repeated = jnp.minimum(repeated, jnp.finfo(jnp.float32).max)  # a tiny penalty overflows; NaN passes
    logits = jnp.where((seen | _rows(state.prompt_mask, slots)) & (repetition != 1), repeated, logits)
    logits -= batch.frequency_penalty[:, None] * counts.astype(jnp.float32)
    return logits - jnp.where(seen, batch.presence_penalty[:, None], 0.0)


def _rows(values: jax.Array, slots: jax.Array) -> jax.Array:
    """values[slots]; written so, XLA:TPU compiles it in a second, and else takes up to half a minute. [B, V]"""
    rows: jax.Array = jax.vmap(lambda slot: lax.dynamic_index_in_dim(values, slot, keepdims=False))(slots)
    return rows


def _thresholds(logits: jax.Array, columns: tuple[jax.Array, ...], mesh: Mesh | None) -> jax.Array:
    """`_threshold` of rows of which the devices of a group have parts.

    They exchange logits only where a row asks for a threshold; always on a GPU, whose CUDA graph has no branches.
    """
    whole = on_whole_rows(_threshold, mesh)
    is_large = mesh is not None and logits.nbytes > _MOST_EXCHANGED * num_shards(mesh)

    def where_asked(function: Callable[..., jax.Array], logits: jax.Array, *columns: jax.Array) -> jax.Array:
        *_, top_k, top_p = columns
        lowest = jnp.full(logits.shape[0], jnp.iinfo(jnp.int32).min)
        is_asked = ((top_k > 0) | (top_p < 1)).any()
        found: jax.Array = lax.cond(is_asked, function, lambda *_: lowest, logits, *columns)
        return found

    thresholds: jax.Array = lax.platform_dependent(
        logits,
        *columns,
        tpu=functools.partial(where_asked, _threshold if is_large else whole),
        cuda=whole,
        default=functools.partial(where_asked, whole),
    )
    return thresholds


def _threshold(
    logits: jax.Array, largest: jax.Array, temperature: jax.Array, top_k: jax.Array, top_p: jax.Array
) -> jax.Array:
    """The least image that top_k and top_p keep.

    Args:
        logits: f32[P·B, V / P], see `sum_rows`.
        largest: f32[B], of each row. temperature: f32[B].
        top_k: i32[B], below 1 is off. top_p: f32[B], 1 is off.

    Returns:
        i32[B], of the images of logits, which no rounding has tied; see `ordered_image`.
    """
    num_rows = largest.shape[0]
    image = ordered_image(logits)
    odds = jnp.exp((logits - along(largest, logits)) / along(temperature, logits))
    lowest = jnp.full(num_rows, jnp.iinfo(jnp.int32).min)
    kept_by_count = largest_threshold(image, jnp.ones_like(image), top_k, lowest, top_k > 0)

    scale = _mass_scale(sum_rows(odds, num_rows))
    masses = jnp.round(odds * along(scale, odds)).astype(jnp.int32)
    total = sum_rows(jnp.where(image >= along(kept_by_count, image), masses, 0), num_rows)
    enough = jnp.ceil(total.astype(jnp.float32) * top_p).astype(jnp.int32)
    return largest_threshold(image, masses, jnp.clip(enough, 1, total), kept_by_count, top_p < 1)


def _mass_scale(sums: jax.Array) -> jax.Array:
    """The power of two that brings a sum ≥ 1 into [2**29, 2**30): the same however the sum was rounded. f32[B]

    By bits: this is fused into the loop over the vocabulary, where frexp and ldexp would run once an element.
    """
    exponent_bits = lax.bitcast_convert_type(sums, jnp.int32) & 0x7F800000
    return lax.bitcast_convert_type((254 << 23) - exponent_bits, jnp.float32) * 2.0 ** (_MASS_BITS - 1)
