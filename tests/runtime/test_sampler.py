"""The sampler against a float64 oracle that sorts, and what must not change its choice."""

import dataclasses
import warnings

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from palladio.runtime import sampler
from palladio.runtime.sampler import SamplingBatch, gumbel_noise, processed_logits, sample, split_seed
from palladio.runtime.sampler_state import MAX_SUPPRESSED_IDS, SamplerState
from palladio.runtime.sampling_params import MAX_LOGIT_BIAS

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


HISTORY = {"prompt": [3, 5, 5, 9, 250], "output": [9, 9, 9, 17, 20]}
CASES = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "cold": {"temperature": 0.05},
    "top_k": {"top_k": 20},
    "top_k over V": {"top_k": V + 5},
    "top_k 0": {"top_k": 0},
    "top_k 2": {"top_k": 2},
    "top_p": {"top_p": 0.9},
    "top_p tiny": {"top_p": 1e-6},
    "top_p near 1": {"top_p": 0.999},
    "top_p 0 in float32": {"top_p": 1e-50},
    "min_p": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "k and p": {"top_k": 20, "top_p": 0.7},
    "k, p, min_p, T": {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
    "p and min_p": {"top_p": 0.6, "min_p": 0.02, "temperature": 1.5},
    "frequency": {"frequency_penalty": 0.7} | HISTORY,
    "frequency < 0": {"frequency_penalty": -1.3} | HISTORY,
    "presence": {"presence_penalty": 1.1} | HISTORY,
    "repetition": {"repetition_penalty": 1.8} | HISTORY,
    "repetition < 1": {"repetition_penalty": 0.6} | HISTORY,
    "all penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3} | HISTORY,
    "bias": {"bias": {4: 5.0, 299: -100.0, 0: 2.5}},
    "min_tokens": {"min_position": 8, "stop_ids": [0, 42, 299]},
    "min_tokens reached": {"min_position": 7, "stop_ids": [0, 42, 299]},
    "all": {
        "bias": {4: 5.0, 42: 9.0, 0: 2.5}, "min_position": 9, "stop_ids": [0, 42], "top_k": 60, "top_p": 0.95,
        "min_p": 0.01, "temperature": 0.8, "frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3,
    } | HISTORY,
}  # fmt: skip
STATE_FIELDS = ("bias", "stop_ids", "prompt", "output")


def split_case(case):
    fields = {k: v for k, v in case.items() if k in STATE_FIELDS}
    return fields, {k: v for k, v in case.items() if k not in STATE_FIELDS} | {"has_bias": "bias" in case}


@pytest.mark.parametrize("name", CASES)
def test_distribution_matches_the_oracle(name):
    case = CASES[name]
    fields, columns = split_case(case)
    for seed in range(3):
        logits = random_logits(1, seed=seed)
        scores = jit_processed(logits, state_with(2, **fields), make_batch(columns, slot_ids=2), tier="full")[0]
        expected = oracle_probabilities(logits[0], **case)
        actual = np.asarray(jax.nn.softmax(scores))
        assert ((actual > 0) == (expected > 1e-38)).all()
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-9)


WITHOUT_EFFECT = ("plain", "top_k 0", "top_k over V", "min_tokens reached")


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_an_effect(name):
    fields, columns = split_case(CASES[name])
    logits = random_logits(1, scale=1.0)
    state = state_with(2, **fields)
    plain = jax.nn.softmax(jit_processed(logits, state, make_batch(slot_ids=2), tier="full")[0])
    changed = jax.nn.softmax(jit_processed(logits, state, make_batch(columns, slot_ids=2), tier="full")[0])
    assert (abs(changed - plain).max() > 1e-4) == (name not in WITHOUT_EFFECT)


@pytest.mark.parametrize("name", CASES)
def test_greedy_takes_the_largest_processed_logit(name):
    fields, columns = split_case(CASES[name])
    logits = random_logits(1, seed=5)
    batch = make_batch(columns | {"temperature": 0.0}, slot_ids=2)
    output, _ = jit_sample(logits, state_with(2, **fields), batch, tier="full")
    assert output.token_ids[0] == oracle_logits(logits[0], **CASES[name]).argmax()


def test_the_draw_is_gumbel_argmax_over_the_processed_logits():
    batch = make_batch(*({"seed": 11 * i, "positions": i, "top_k": 50, "temperature": 0.9} for i in range(16)))
    logits = random_logits(16)
    state = SamplerState.allocate(4, V)
    output, _ = jit_sample(logits, state, batch, tier="random")
    scores = np.asarray(jit_processed(logits, state, batch, tier="random"), np.float64)
    for i in range(16):
        bits = jax.random.bits(jax.random.fold_in(jax.random.key(11 * i), i), (V,), jnp.uint32)
        uniform = (np.asarray(bits, np.float64) + 0.5) / 2**32
        assert output.token_ids[i] == np.argmax(scores[i] - np.log(-np.log1p(-uniform)))


@pytest.mark.parametrize("vary", ["positions", "seed"])
def test_frequencies_follow_the_probabilities(vary):
    num_draws, params = 20_000, {"temperature": 1.3, "top_p": 0.95}
    logits = random_logits(1, vocab_size=40, scale=1.5)
    batch = make_batch(*({vary: i} for i in range(num_draws)), **params)
    output, _ = jit_sample(np.repeat(logits, num_draws, 0), SamplerState.allocate(2, 40), batch, tier="random")
    observed = np.bincount(output.token_ids, minlength=40)
    expected = oracle_probabilities(logits[0], **params) * num_draws
    assert not observed[expected == 0].any()
    assert scipy.stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4


def test_noise_is_gumbel_with_a_full_tail():
    noise = np.asarray(gumbel_noise(jnp.array([[1, 2]], jnp.uint32), jnp.array([3]), 2_000_000))[0]
    assert np.isfinite(noise).all()
    assert scipy.stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert len(np.unique(noise[noise > 11])) == (noise > 11).sum()  # 23 bits would repeat themselves here


def test_same_seed_and_position_give_the_same_token_anywhere():
    params = {"seed": -5, "positions": 33, "temperature": 0.8, "top_p": 0.9, "top_k": 30, "min_p": 0.01}
    logits = random_logits(1, seed=9)
    others = random_logits(16, seed=10)
    state = state_with(1, bias={0: 50.0}, output=[1, 2, 3])  # a former owner's; slot 1 was not reset
    tokens = set()
    for num_rows, row in ((2, 1), (1, 0), (5, 2), (16, 15)):
        mixed = others[:num_rows].copy()
        mixed[row] = logits[0]
        rows = [{"seed": i, "temperature": 0.0 if i % 2 else 1.7, "top_k": i} for i in range(num_rows)]
        rows[row] = params | {"slot_ids": 1}
        batch = make_batch(*rows)
        for tier in ("random", "full"):
            tokens.add(int(jit_sample(mixed, state, batch, tier=tier)[0].token_ids[row]))
        if num_rows == 2:  # without jit, once: it takes seconds
            tokens.add(int(sample(jnp.array(mixed), state, batch, tier="full")[0].token_ids[row]))
    assert len(tokens) == 1


@pytest.mark.parametrize("vocab_size", [301, 384, 1000])
def test_a_padded_vocabulary_gives_the_same_token(vocab_size):
    rows = [{"seed": i, "positions": i, "top_p": 0.9, "min_p": 0.001 * i} for i in range(32)]
    logits = random_logits(32)
    padded = np.pad(logits, ((0, 0), (0, vocab_size - V)), constant_values=-np.inf)
    short, _ = jit_sample(logits, SamplerState.allocate(2, V), make_batch(*rows), tier="full")
    long, _ = jit_sample(padded, SamplerState.allocate(2, vocab_size), make_batch(*rows), tier="full")
    np.testing.assert_array_equal(short.token_ids, long.token_ids)
    np.testing.assert_array_equal(short.top_ids, long.top_ids)


def test_seed_words_and_positions_all_matter():
    seeds = [0, 1, 2**32, 2**63, -1, 2**64 - 2]
    noise = np.asarray(gumbel_noise(make_batch(*({"seed": s} for s in seeds)).seeds, jnp.full(6, 4), 64))
    assert len({row.tobytes() for row in noise}) == len(seeds)
    moved = np.asarray(gumbel_noise(make_batch(*({"seed": s} for s in seeds)).seeds, jnp.full(6, 5), 64))
    assert not (noise == moved).any()


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"temperature": 9e-7}, {"top_k": 1}])
def test_greedy_rows_agree_in_every_tier_and_break_ties_by_lowest_id(greedy):
    logits = random_logits(8)
    logits[:, 100] = logits[:, 200] = logits.max() + 1
    batch = make_batch(*({"seed": i} | greedy for i in range(8)))
    state = SamplerState.allocate(4, V)
    for tier in ("greedy", "random", "full"):
        assert (jit_sample(logits, state, batch, tier=tier)[0].token_ids == 100).all()


def test_ties_share_a_fate():
    logits = np.array([[1, 3, 2, 2, 2, -0.0, 0.0, -1]], np.float32)
    state = SamplerState.allocate(2, 8)

    def kept(**params):
        scores = jit_processed(logits, state, make_batch(params), tier="random")[0]
        return np.flatnonzero(np.isfinite(scores)).tolist()

    assert kept(top_k=2) == [1, 2, 3, 4]
    assert kept(top_k=6) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(top_p=0.5) == [1, 2, 3, 4]
    assert kept(top_p=1e-9) == [1]


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 1e-7}, {"min_p": 1.0}, {"temperature": 3e38}])
def test_one_finite_logit_is_chosen(params):
    logits = np.full((1, V), -np.inf, np.float32)
    logits[0, 77] = -1e4
    output, _ = jit_sample(logits, SamplerState.allocate(2, V), make_batch(params), tier="full")
    assert output.token_ids[0] == 77
    assert output.is_finite[0]
    assert output.logprobs[0] == output.top_logprobs[0, 0] == 0


@pytest.mark.parametrize("scale", [1e-38, 1e-3, 1e4, 3e38])
def test_extreme_logits_give_a_kept_token(scale):
    logits = np.clip(random_logits(4, scale=0.3), -1, 1) * np.float32(scale)
    batch = make_batch({"top_p": 0.5}, {"temperature": 1e-5}, {"repetition_penalty": 1e-30}, {"min_p": 0.5}, slot_ids=1)
    output, _ = jit_sample(logits, state_with(1, prompt=[1, 2, 3]), batch, tier="full")
    assert output.is_finite.all()
    assert ((output.token_ids >= 0) & (output.token_ids < V)).all()
    assert output.token_ids[1] == logits[1].argmax() or scale < 1


@pytest.mark.parametrize("tier", ["greedy", "random", "full"])
def test_nan_is_reported_and_stays_in_its_row(tier):
    logits = random_logits(4)
    clean, _ = jit_sample(logits, SamplerState.allocate(2, V), make_batch(*({"seed": i} for i in range(4))), tier=tier)
    logits[1, 5], logits[2, 6], logits[3] = np.nan, np.inf, -np.inf
    output, _ = jit_sample(logits, SamplerState.allocate(2, V), make_batch(*({"seed": i} for i in range(4))), tier=tier)
    assert output.is_finite.tolist() == [True, False, False, False]
    assert output.token_ids[0] == clean.token_ids[0]
    assert ((output.token_ids >= 0) & (output.token_ids < V)).all()


def test_logit_bias_of_100_forces_and_bans():
    logits = random_logits(2, scale=1.0)
    best = int(logits[1].argmax())
    state = state_with(1, bias={33: 100.0})
    banned = state_with(2, bias={best: -100.0})
    state = dataclasses.replace(
        state,
        bias_ids=state.bias_ids.at[2].set(banned.bias_ids[2]),
        bias_values=state.bias_values.at[2].set(banned.bias_values[2]),
    )
    for temperature in (0.0, 1.0):
        batch = make_batch({"slot_ids": 1}, {"slot_ids": 2}, has_bias=True, temperature=temperature)
        token_ids = jit_sample(logits, state, batch, tier="full")[0].token_ids
        assert token_ids[0] == 33
        assert token_ids[1] != best
    unbiased = make_batch({"slot_ids": 1}, {"slot_ids": 2}, temperature=0.0)
    assert jit_sample(logits, state, unbiased, tier="full")[0].token_ids[1] == best


def test_min_tokens_lasts_until_its_position():
    logits = random_logits(1)
    best = int(logits.argmax())
    state = state_with(1, stop_ids=[best], bias={best: 100.0})
    for position, ends in ((7, False), (9, False), (10, True)):
        batch = make_batch(
            {"positions": position, "min_position": 10, "temperature": 0.0, "has_bias": True}, slot_ids=1
        )
        assert (jit_sample(logits, state, batch, tier="full")[0].token_ids[0] == best) == ends


def test_frequency_penalty_counts_what_was_sampled():
    logits = np.zeros((2, V), np.float32)
    logits[:, 5], logits[:, 8] = 3.0, 2.0
    state = SamplerState.allocate(3, V)
    batch = make_batch({"slot_ids": 1, "frequency_penalty": 0.4}, {"slot_ids": 2}, temperature=0.0)
    tokens = []
    for _ in range(7):
        output, state = jit_sample(logits, state, batch, tier="full")
        tokens.append(output.token_ids.tolist())
    # 3, 2.6, 2.2, then 1.8 < 2, then 1.8 > 1.6, ...
    assert [t[0] for t in tokens] == [5, 5, 5, 8, 5, 8, 5]
    assert {t[1] for t in tokens} == {5}
    assert state.output_counts[1, 5] == 5
    assert state.output_counts[1, 8] == 2
    assert state.output_counts[2].sum() == 7
    assert state.last_token[1:].tolist() == [5, 5]


def test_presence_and_repetition_look_at_output_and_prompt():
    logits = np.zeros((1, V), np.float32)
    logits[:, 5], logits[:, 8] = 3.0, 2.9
    greedy = {"slot_ids": 1, "temperature": 0.0}
    in_prompt, in_output = state_with(1, prompt=[5]), state_with(1, output=[5])
    for params, state, token in (
        ({"presence_penalty": 0.2}, in_prompt, 5),
        ({"presence_penalty": 0.2}, in_output, 8),
        ({"frequency_penalty": 0.2}, in_prompt, 5),
        ({"repetition_penalty": 1.1}, in_prompt, 8),
        ({"repetition_penalty": 1.1}, in_output, 8),
    ):
        assert jit_sample(logits, state, make_batch(greedy | params), tier="full")[0].token_ids[0] == token


@pytest.mark.parametrize("vocab_size", [5, V, 4096, 12_345])
def test_logprobs_are_those_of_the_raw_logits(vocab_size):
    logits = np.round(random_logits(3, vocab_size), 1)  # with ties
    batch = make_batch({"temperature": 0.0}, {"temperature": 5.0}, {"top_k": 2}, repetition_penalty=1.5)
    output, _ = jit_sample(logits, SamplerState.allocate(2, vocab_size), batch, tier="full")
    exact = logits - scipy.special.logsumexp(logits.astype(np.float64), axis=-1, keepdims=True)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :20]
    width = order.shape[1]
    np.testing.assert_array_equal(output.top_ids[:, :width], order)
    np.testing.assert_allclose(
        output.top_logprobs[:, :width], np.take_along_axis(exact, order, 1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(output.logprobs, exact[np.arange(3), output.token_ids], rtol=1e-5, atol=1e-5)
    assert output.top_ids.shape == output.top_logprobs.shape == (3, 20)
    assert output.logprobs[0] == output.top_logprobs[0, 0]  # the very same float


def test_cheap_tiers_report_no_logprobs_and_count_nothing():
    for tier in ("greedy", "random"):
        output, state = jit_sample(random_logits(2), SamplerState.allocate(3, V), make_batch({}, {}), tier=tier)
        assert output.logprobs is output.top_ids is output.top_logprobs is None
        assert not state.output_counts.any()


@pytest.mark.parametrize("tier", ["greedy", "random", "full"])
def test_scratch_rows_touch_only_row_zero(tier):
    state = state_with(1, output=[4, 4], num_slots=3)
    batch = make_batch({"slot_ids": 0}, {"slot_ids": 2}, {"slot_ids": 0}, {"slot_ids": 0})
    _, after = jit_sample(random_logits(4), state, batch, tier=tier)
    np.testing.assert_array_equal(after.output_counts[1], state.output_counts[1])
    assert after.last_token[1] == state.last_token[1]


@pytest.mark.parametrize("tier", ["greedy", "random", "full"])
def test_donation_updates_in_place(tier):
    run = jax.jit(sample, static_argnames="tier", donate_argnames="state")
    state = SamplerState.allocate(65, V)
    logits, batch = random_logits(2), make_batch({"slot_ids": 1}, {"slot_ids": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = run.lower(logits, state, batch, tier=tier).compile()
        before = state.output_counts.unsafe_buffer_pointer()
        _, after = compiled(logits, state, batch)
    assert state.output_counts.is_deleted()
    assert after.output_counts.unsafe_buffer_pointer() == before
    assert not any(" copy(" in line and "s32[65,300]" in line for line in compiled.as_text().splitlines())


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32 + 7, 2**63 - 1, -(2**63), 2**64 - 1])
def test_split_seed(seed):
    low, high = split_seed(seed)
    assert (high << 32 | low) == seed % 2**64
    assert 0 <= low < 2**32
    assert 0 <= high < 2**32


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_split_seed_rejects_what_64_bits_cannot_hold(seed):
    with pytest.raises(ValueError, match="seed must be"):
        split_seed(seed)


# Thresholds, against sorting.

float_rows = hypothesis.extra.numpy.arrays(
    np.float32,
    (3, 24),
    elements=st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
        st.sampled_from([-np.inf, -0.0, 0.0, 1.0, float(np.nextafter(np.float32(1), np.float32(2)))]),
    ),
)
jit_bisect = jax.jit(sampler._bisect)
jit_image = jax.jit(sampler._ordered_image)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(float_rows)
def test_image_keeps_order_and_ties(values):
    image = np.asarray(jit_image(values)).astype(np.int64)
    sign = (values[:, :, None] > values[:, None, :]).astype(int) - (values[:, :, None] < values[:, None, :])
    np.testing.assert_array_equal(np.sign(image[:, :, None] - image[:, None, :]), sign)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    float_rows,
    hypothesis.extra.numpy.arrays(np.int32, (3, 24), elements=st.integers(0, 2**25)),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_bisection_finds_the_largest_threshold(values, masses, shares, used):
    image = np.asarray(jit_image(values))
    enough = np.maximum(1, [int(s * m.sum()) for s, m in zip(shares, masses, strict=True)]).astype(np.int32)
    masses[:, 0] = np.maximum(masses[:, 0], 1)
    lowest = np.full(3, -(2**31), np.int32)
    actual = np.asarray(jit_bisect(image, masses, enough, lowest, np.array(used)))
    for i in range(3):
        fitting = [t for t in image[i] if masses[i][image[i] >= t].sum() >= enough[i]]
        assert actual[i] == (max(fitting) if used[i] else lowest[i])


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    float_rows,
    st.integers(-1, 30),
    st.floats(1 / 64, 1.0, width=32),
    st.floats(0.0, 1.0, width=32),
    st.floats(0.05, 100.0),
)
def test_filters_keep_a_prefix_of_the_sorted_tokens(values, top_k, top_p, min_p, temperature):
    values[:, 0] = 0.5  # at least one finite
    params = {"top_k": max(top_k, 0) if top_k != 1 else 2, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    batch = make_batch(params, params, params)
    scores = np.asarray(jit_processed(values, SamplerState.allocate(2, 24), batch, tier="random"))
    for row, score in zip(values, scores, strict=True):
        kept = np.isfinite(score)
        assert kept[row == row.max()].all()
        dropped = ~kept & np.isfinite(row)
        # what is kept is above all that is dropped (a logit far below may underflow, never the reverse)
        assert not dropped.any() or row[kept].min() > row[dropped].max()
        if 0 < params["top_k"] < len(row):
            assert kept.sum() <= (row >= np.sort(row)[-params["top_k"]]).sum()
        with np.errstate(over="ignore"):
            odds = np.exp((row.astype(np.float64) - row.max()) / np.float32(temperature))
        assert (odds[kept] >= min_p * (1 - 1e-5)).all()
        within_k = odds * (row >= np.sort(row)[-params["top_k"]]) if 0 < params["top_k"] < len(row) else odds
        if min_p == 0:
            assert within_k[kept].sum() >= top_p * within_k.sum() * (1 - 1e-6)
        next_lowest = row > row[kept].min()
        if next_lowest.any() and top_p < 1:
            assert within_k[next_lowest].sum() < top_p * within_k.sum() * (1 + 1e-6) + 1e-6
