"""The sampler against a float64 oracle that sorts, and what must not change its choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy  # its modules are imported when they are used

from palladio.runtime.execution.batch.batch_builder import split_seed
from palladio.runtime.execution.sampling.draws import gumbel_noise, random_bits
from palladio.runtime.execution.sampling.sampler import sample
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from tests.runtime.execution.sampling.sampler_oracle import (
    V,
    jit_processed,
    jit_sample,
    make_batch,
    oracle_logits,
    oracle_probabilities,
    random_logits,
    state_with,
)

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


def test_the_bits_are_those_of_jax_random():
    seeds, positions = [0, 2**32 + 5, -1, 2**63], [0, 1, 2**31 - 1, 77]
    bits = random_bits(make_batch(*({"seed": s} for s in seeds)).seeds, jnp.array(positions), 1001)
    for row, seed, position in zip(np.asarray(bits), seeds, positions, strict=True):
        key = jax.random.wrap_key_data(jnp.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], jnp.uint32))
        np.testing.assert_array_equal(row, jax.random.bits(jax.random.fold_in(key, position), (1001,), jnp.uint32))


def test_a_row_without_filters_gives_the_same_token_in_every_tier():
    logits, state = random_logits(16), SamplerState.allocate(4, V)
    batch = make_batch(*({"seed": i, "positions": 3 * i, "temperature": 0.2 * i} for i in range(16)))
    tokens = {tier: jit_sample(logits, state, batch, tier=tier)[0].token_ids for tier in ("plain", "random", "full")}
    np.testing.assert_array_equal(tokens["plain"], tokens["random"])
    np.testing.assert_array_equal(tokens["plain"], tokens["full"])
    assert len(set(tokens["plain"].tolist())) > 8


@pytest.mark.parametrize("vary", ["positions", pytest.param("seed", marks=pytest.mark.slow)])
def test_frequencies_follow_the_probabilities(vary):
    num_draws, params = 8_000, {"temperature": 1.3, "top_p": 0.95}
    logits = random_logits(1, vocab_size=40, scale=1.5)
    batch = make_batch(*({vary: i} for i in range(num_draws)), **params)
    output, _ = jit_sample(np.repeat(logits, num_draws, 0), SamplerState.allocate(2, 40), batch, tier="random")
    observed = np.bincount(output.token_ids, minlength=40)
    expected = oracle_probabilities(logits[0], **params) * num_draws
    assert not observed[expected == 0].any()
    assert scipy.stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4


def test_noise_is_gumbel_with_a_full_tail():
    noise = np.asarray(gumbel_noise(jnp.array([[1, 2]], jnp.uint32), jnp.array([3]), 1_000_000))[0]
    assert np.isfinite(noise).all()
    assert scipy.stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert len(np.unique(noise[noise > 11])) == (noise > 11).sum()  # 23 bits would repeat themselves here


def test_same_seed_and_position_give_the_same_token_anywhere():
    params = {"seed": -5, "positions": 33, "temperature": 0.8, "top_p": 0.9, "top_k": 30, "min_p": 0.01}
    logits = random_logits(1, seed=9)
    others = random_logits(16, seed=10)
    state = state_with(1, bias={0: 50.0}, output=[1, 2, 3])  # a former owner's; slot 1 was not reset
    tokens = set()
    for num_rows, row in ((1, 0), (16, 15)):
        mixed = others[:num_rows].copy()
        mixed[row] = logits[0]
        rows = [{"seed": i, "temperature": 0.0 if i % 2 else 1.7, "top_k": i} for i in range(num_rows)]
        rows[row] = params | {"slot_ids": 1}
        batch = make_batch(*rows)
        for tier in ("random", "full"):
            tokens.add(int(jit_sample(mixed, state, batch, tier=tier)[0].token_ids[row]))
    assert len(tokens) == 1


@pytest.mark.slow  # takes seconds
def test_without_jit_the_token_is_the_same():
    batch, state = (
        make_batch({"seed": -5, "positions": 33, "temperature": 0.8, "top_p": 0.9}),
        SamplerState.allocate(4, V),
    )
    logits = random_logits(1, seed=9)
    jitted, _ = jit_sample(logits, state, batch, tier="full")
    plain, _ = sample(jnp.array(logits), state, batch, tier="full")
    assert plain.token_ids == jitted.token_ids


@pytest.mark.parametrize("vocab_size", [pytest.param(301, marks=pytest.mark.slow), 1000])
def test_a_padded_vocabulary_gives_the_same_token(vocab_size):
    rows = [{"seed": i, "positions": i, "top_p": 0.9, "min_p": 0.002 * i} for i in range(16)]
    logits = random_logits(16)
    padded = np.pad(logits, ((0, 0), (0, vocab_size - V)), constant_values=-np.inf)
    short, _ = jit_sample(logits, SamplerState.allocate(4, V), make_batch(*rows), tier="full")
    long, _ = jit_sample(padded, SamplerState.allocate(4, vocab_size), make_batch(*rows), tier="full")
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
    logits = random_logits(16)
    logits[:, 100] = logits[:, 200] = logits.max() + 1
    batch = make_batch(*({"seed": i} | greedy for i in range(16)))
    state = SamplerState.allocate(4, V)
    for tier in ("greedy", "random", "full"):
        assert (jit_sample(logits, state, batch, tier=tier)[0].token_ids == 100).all()


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 1e-7}, {"min_p": 1.0}, {"temperature": 3e38}])
def test_one_finite_logit_is_chosen(params):
    logits = np.full((1, V), -np.inf, np.float32)
    logits[0, 77] = -1e4
    output, _ = jit_sample(logits, SamplerState.allocate(4, V), make_batch(params), tier="full")
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
# XLA:CPU computes the maximum of a long row otherwise.
@pytest.mark.parametrize("vocab_size", [pytest.param(V, marks=pytest.mark.slow), 5000])
def test_nan_is_reported_and_stays_in_its_row(tier, vocab_size):
    logits, state = random_logits(4, vocab_size), SamplerState.allocate(2, vocab_size)
    batch = make_batch(*({"seed": i} for i in range(4)))
    clean, _ = jit_sample(logits, state, batch, tier=tier)
    logits[1, 5], logits[2, 6], logits[3] = np.nan, np.inf, -np.inf
    output, _ = jit_sample(logits, state, batch, tier=tier)
    assert output.is_finite.tolist() == [True, False, False, False]
    assert output.token_ids[0] == clean.token_ids[0]
    assert ((output.token_ids >= 0) & (output.token_ids < vocab_size)).all()


@pytest.mark.parametrize("vocab_size", [5, pytest.param(V, marks=pytest.mark.slow), 12_345])
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


@pytest.mark.parametrize("tier", ["greedy", "random"])
@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({100: 9.0, 101: 9.0, 300: 9.0}, 100),
        ({127: 9.0, 128: 9.0}, 127),
        ({400: 9.0, 399: 9.0, 512: 9.0}, 399),
        ({130: -0.0, 140: 0.0, 700: 0.0}, 130),  # -0 equals 0
        ({700: 0.0, 710: -0.0}, 700),
    ],
    ids=str,
)
def test_a_greedy_row_takes_the_lowest_of_equals(tier, best, expected):
    logits = np.full((2, 777), -5.0, np.float32)
    logits[:, list(best)] = list(best.values())
    batch = make_batch({"temperature": 0.0}, {"top_k": 1})
    assert jit_sample(logits, SamplerState.allocate(2, 777), batch, tier=tier)[0].token_ids.tolist() == [expected] * 2
