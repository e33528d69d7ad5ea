"""Vectors of packed texts against numpy, text by text: padding, neighbours and prompts that do not count."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.pooling.pool import apply_steps, pool, token_vectors
from palladio.model.pooling.pooling_spec import Activation, Dense, Normalize, PoolingMethod, PoolingSpec
from palladio.model.pooling.sparse import SparseSpec, token_weights, vocabulary_weights

T, B, D, V = 24, 4, 6, 11
LENGTHS = (7, 1, 10)  # of the texts; the fourth has none, and padding follows
METHODS: tuple[PoolingMethod, ...] = ("cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last")


def packed(seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Hidden states with garbage in the padding, the text of each token, and the texts' own states."""
    rng = np.random.default_rng(seed)
    texts = [rng.standard_normal((length, D)).astype(np.float32) for length in LENGTHS]
    hidden = np.full((T, D), 1e6, np.float32)
    hidden[: sum(LENGTHS)] = np.concatenate(texts)
    segments = np.full(T, B, np.int32)
    segments[: sum(LENGTHS)] = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    return hidden, segments, texts


def by_hand(method: PoolingMethod, text: np.ndarray, skipped: int = 0) -> np.ndarray:
    places, rest = np.arange(skipped + 1, len(text) + 1)[:, None], text[skipped:]
    return {
        "cls": rest[0],
        "max": rest.max(0),
        "mean": rest.mean(0),
        "mean_sqrt_len": rest.sum(0) / len(rest) ** 0.5,
        "weighted_mean": (rest * places).sum(0) / places.sum(),
        "last": rest[-1],
    }[method]


def run(spec: PoolingSpec, hidden: np.ndarray, segments: np.ndarray, *others: np.ndarray) -> np.ndarray:
    step = jax.jit(functools.partial(pool, spec, num_segments=B))
    names = ("weights", "skipped")
    arrays = {name: value for name, value in zip(names, others, strict=False) if value is not None}
    return np.array(step(hidden, segments, **arrays))


@pytest.mark.parametrize("method", METHODS)
def test_each_method(method: PoolingMethod) -> None:
    hidden, segments, texts = packed()
    found = run(PoolingSpec((method,), ()), hidden, segments)
    for row, text in zip(found, texts, strict=False):
        np.testing.assert_allclose(row, by_hand(method, text), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_that_does_not_count(method: PoolingMethod) -> None:
    """Of the third text; of the second one, which is shorter, the last token counts all the same."""
    hidden, segments, texts = packed()
    found = run(PoolingSpec((method,), ()), hidden, segments, (), np.array([0, 5, 4, 0], np.int32))
    for row, text, skipped in zip(found, texts, (0, 0, 4), strict=False):
        np.testing.assert_allclose(row, by_hand(method, text, skipped), rtol=2e-6, atol=2e-6)


def test_neighbours_change_nothing() -> None:
    spec = PoolingSpec(METHODS, (Normalize(),))
    hidden, segments, texts = packed()
    together = run(spec, hidden, segments)
    for index, text in enumerate(texts):
        alone, of_text = np.full((T, D), np.nan, np.float32), np.full(T, -1, np.int32)
        alone[: len(text)], of_text[: len(text)] = text, 0
        np.testing.assert_allclose(run(spec, alone, of_text)[0], together[index], rtol=0, atol=2e-6)


ACTIVATIONS: dict[Activation, object] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / 2**0.5)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("has_bias", "adds_input", "num_outputs"), [(True, False, 3), (False, True, 3), (True, True, D)]
)
def test_dense(activation: Activation, has_bias: bool, adds_input: bool, num_outputs: int) -> None:
    rng = np.random.default_rng(2)
    step = Dense("2_Dense", D, num_outputs, has_bias, activation, adds_input)
    own = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in step.tensors.items()}
    x = rng.standard_normal((5, D)).astype(np.float32)
    y = ACTIVATIONS[activation](x @ own["linear.weight"].T + own.get("linear.bias", 0))  # type: ignore[operator]
    if adds_input:
        y = y + (x @ own["residual.weight"].T if "residual.weight" in own else x)
    found = apply_steps((step,), jnp.array(x), tuple(map(jnp.array, own.values())))
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)


def test_steps_of_tokens_come_before_the_pooling() -> None:
    dense = Dense("1_Dense", D, 3, has_bias=False, activation="relu")
    spec = PoolingSpec(("mean",), (Dense("3_Dense", 3, 2, activation="identity"),), (dense,))
    rng = np.random.default_rng(3)
    weights = tuple(rng.standard_normal(shape).astype(np.float32) for _, _, shape in spec.tensors)
    hidden, segments, texts = packed()
    of_tokens = np.maximum(texts[0] @ weights[0].T, 0)
    np.testing.assert_allclose(token_vectors(spec, jnp.array(texts[0]), weights), of_tokens, rtol=1e-5, atol=1e-5)
    expected = of_tokens.mean(0) @ weights[1].T + weights[2]
    np.testing.assert_allclose(run(spec, hidden, segments, weights)[0], expected, rtol=1e-5, atol=1e-5)


def test_weights_of_a_texts_tokens() -> None:
    hidden, _, texts = packed()
    kernel, bias = np.random.default_rng(4).standard_normal((1, D)).astype(np.float32), np.float32([0.25])
    found = token_weights(jnp.array(hidden), jnp.array(kernel), jnp.array(bias))
    expected = np.maximum(np.concatenate(texts) @ kernel[0] + bias, 0)
    np.testing.assert_allclose(found[: sum(LENGTHS)], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [SparseSpec(), SparseSpec(strategy="sum"), SparseSpec(num_logs=2)], ids=str)
@pytest.mark.parametrize("block", [4, 7, 64])
def test_weights_of_the_vocabulary(spec: SparseSpec, block: int) -> None:
    """However many tokens are computed at a time."""
    table = np.random.default_rng(5).standard_normal((V, D)).astype(np.float32)
    hidden, segments, texts = packed()

    def logits(states: jax.Array) -> jax.Array:
        return states @ table.T

    found = vocabulary_weights(spec, logits, jnp.array(hidden), jnp.array(segments), B, V, block)
    for row, text in zip(found, texts, strict=False):
        weights = np.maximum(text @ table.T, 0)
        for _ in range(spec.num_logs):
            weights = np.log1p(weights)
        expected = weights.max(0) if spec.strategy == "max" else weights.sum(0)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[len(texts) :], 0)
