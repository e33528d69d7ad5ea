"""The gated delta rule and its convolution against their definitions, and what they leave alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.gated_delta import DeltaRows, gated_delta, short_convolution
from palladio.pallas_kernels.gated_delta.recurrence import _inverse
from palladio.pallas_kernels.gated_delta.reference import delta_rule

K, R, DK, DV, WIDTH, SLOTS = 2, 3, 8, 6, 4, 7
# Tokens, slot and tokens before of each row. The first two decode. One row has come to its end, two are padding.
COUNTS, OWNERS, BEFORE = [1, 1, 70, 3, 64, 1, 0, 0, 200], [3, 1, 2, 4, 5, 0, 0, 0, 6], [4, 8, 0, 40, 0, 0, 0, 0, 11]
NUM_TOKENS = 400  # so the last ones are padding


def arrays(num_tokens: int) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    q, k = (rng.standard_normal((num_tokens, K, DK)) + 0.5 for _ in range(2))
    found = {
        "q": q / np.linalg.norm(q, axis=-1, keepdims=True) * DK**-0.5,
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.standard_normal((num_tokens, K, R, DV)),
        "decay": -0.1 * np.exp(rng.standard_normal((num_tokens, K, R))),
        "beta": rng.uniform(0, 1, (num_tokens, K, R)),
        "states": rng.standard_normal((SLOTS, K, R, DK, DV)),
        "x": rng.standard_normal((num_tokens, K, 5)),
        "weight": rng.standard_normal((K, 5, WIDTH)),
        "history": rng.standard_normal((SLOTS, K, WIDTH - 1, 5)),
    }
    found["states"][0] = found["history"][0] = 0  # the scratch slot's
    return {name: value.astype(np.float32) for name, value in found.items()}


def step(kind: Any = "prefill", counts: list[int] = COUNTS, owners: list[int] = OWNERS) -> tuple[DeltaRows, np.ndarray]:
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    kv_len = np.add(BEFORE[: len(counts)], counts).astype(np.int32)
    num_tokens = len(counts) if kind == "decode" else NUM_TOKENS
    query_start, lengths, slots = (jnp.asarray(value, jnp.int32) for value in (start, kv_len, owners))
    return DeltaRows.of(query_start, lengths, slots, num_tokens, jnp.int32(2), kind), start


def expected_rule(given: dict[str, np.ndarray], start: np.ndarray, counts: list[int], owners: list[int]) -> Any:
    states, results = given["states"].copy(), {}
    for row, (count, slot) in enumerate(zip(counts, owners, strict=True)):
        if count and slot:
            where = slice(start[row], start[row + 1])
            old = given["states"][slot] if BEFORE[row] else np.zeros_like(given["states"][slot])
            q, k, v, decay, beta = (jnp.asarray(given[name][where]) for name in ("q", "k", "v", "decay", "beta"))
            results[row], states[slot] = delta_rule(q, k, v, decay, beta, jnp.asarray(old))
    return results, states


def check_rule(rows: DeltaRows, start: np.ndarray, num_tokens: int, counts: list[int], owners: list[int]) -> None:
    given = arrays(num_tokens)
    names = ("q", "k", "v", "decay", "beta", "states")
    out, states = jax.jit(gated_delta)(*(jnp.asarray(given[name]) for name in names), rows)
    results, expected = expected_rule(given, start, counts, owners)
    assert len(results) >= 3
    for row, result in results.items():
        np.testing.assert_allclose(out[start[row] : start[row + 1]], result, atol=2e-6, rtol=0)
    np.testing.assert_allclose(states, expected, atol=2e-6, rtol=0)
    np.testing.assert_array_equal(states[0], 0)


def test_chunks_and_single_tokens_are_the_rule() -> None:
    """A row of padding, or one that has come to its end, changes no state; a request's first tokens begin from none."""
    rows, start = step()
    check_rule(rows, start, NUM_TOKENS, COUNTS, OWNERS)


def test_a_decode_step_is_the_rule() -> None:
    counts, owners = [1, 1, 1, 1, 0, 0], [3, 1, 2, 0, 0, 0]
    rows, start = step("decode", counts, owners)
    check_rule(rows, start, len(counts), counts, owners)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_the_convolution_sees_its_own_request(kind: str) -> None:
    counts, owners = (COUNTS, OWNERS) if kind == "prefill" else ([1, 1, 1, 1, 0, 0], [3, 1, 2, 0, 0, 0])
    rows, start = step(kind, counts, owners)
    given = arrays(NUM_TOKENS if kind == "prefill" else len(counts))
    out, new = jax.jit(short_convolution)(*(jnp.asarray(given[name]) for name in ("x", "weight", "history")), rows)
    expected = given["history"].copy()
    for row, (count, slot) in enumerate(zip(counts, owners, strict=True)):
        if count and slot:
            old = np.swapaxes(given["history"][slot], 0, 1) * bool(BEFORE[row])
            window = np.concatenate([old, given["x"][start[row] : start[row + 1]]])
            sums = sum(window[i : i + count] * given["weight"][..., i] for i in range(WIDTH))
            np.testing.assert_allclose(out[start[row] : start[row + 1]], sums, atol=2e-6, rtol=0)
            expected[slot] = np.swapaxes(window[-(WIDTH - 1) :], 0, 1)
    np.testing.assert_array_equal(new, expected)


def test_the_inverse_is_steady() -> None:
    """Equal keys, all of a change taken: sums of powers would lose every digit."""
    lower = np.tril(np.ones((64, 64), np.float32), -1)
    np.testing.assert_allclose(_inverse(jnp.asarray(lower)) @ (lower + np.eye(64)), np.eye(64), atol=1e-6)
