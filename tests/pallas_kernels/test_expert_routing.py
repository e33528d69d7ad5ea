"""The routing of experts on a TPU, interpreted: to the bit what sorting gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.expert_routing import (
    Groups,
    Routing,
    can_route_experts,
    can_sum_experts,
    route_experts,
    sum_experts,
)
from palladio.pallas_kernels.target import Target

PLAIN, SIMULATED = Target(interpret="plain"), Target(interpret="on_wait")
# Of tests that differ in numbers alone, one compiles the program.
ROUTED = jax.jit(route_experts, static_argnames=("routing", "backend", "target"))


def step(num_tokens, num_experts, *, seed=0, values=None):
    """Logits and x of a step. Args: values: logits are drawn from these, so that many are equal."""
    rng = np.random.default_rng(seed)
    shape = (num_tokens, num_experts)
    logits = rng.normal(size=shape) * 3 if values is None else rng.choice(values, shape)
    return jnp.asarray(logits, jnp.float32), jnp.asarray(rng.normal(size=(num_tokens, 40)), jnp.bfloat16)


def bias_of(routing, num_experts):
    """Of a router that has one: larger than the differences of most scores."""
    bias = np.random.default_rng(1).normal(size=num_experts) * 0.3
    return {"bias": jnp.asarray(bias, jnp.float32)} if routing.has_bias else {}


def routed_as_defined(arrays, num_tokens, first, routing, backend, target):
    """What the kernel gives and what the definition does. All but the rows must be the same. Of weights the last
    bit may differ: XLA:CPU's exp rounds otherwise where it computes numbers one by one, and the sum over all experts
    has another order."""
    logits, x = arrays
    assert can_route_experts(x, logits.shape[1], routing, backend=backend, target=target)
    args = logits, x, jnp.int32(num_tokens), jnp.int32(first), routing
    bias = bias_of(routing, logits.shape[1])
    found, meant = (ROUTED(*args, backend=name, target=target, **bias) for name in (backend, "reference"))
    np.testing.assert_allclose(found.weights, meant.weights, rtol=5e-7, atol=0)
    for name in ("places", "sizes"):
        assert getattr(found, name).dtype == getattr(meant, name).dtype
        np.testing.assert_array_equal(getattr(found, name), getattr(meant, name), err_msg=name)
    return found, meant


def assert_same(arrays, num_tokens, first, routing, target=PLAIN):
    found, meant = routed_as_defined(arrays, num_tokens, first, routing, "tpu", target)
    count = int(meant.sizes.sum())
    np.testing.assert_array_equal(found.rows[:count].astype(jnp.float32), meant.rows[:count].astype(jnp.float32))
    return found


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "here", "first", "renormalize"),
    [
        (1, 8, 2, 8, 0, False),
        (64, 128, 8, 32, 32, True),
        (40, 32, 4, 8, 24, False),
        (144, 16, 1, 16, 0, True),
        pytest.param(2, 128, 8, 32, 96, True, marks=pytest.mark.slow),
        pytest.param(48, 60, 4, 15, 15, False, marks=pytest.mark.slow),
        pytest.param(24, 60, 4, 60, 0, True, marks=pytest.mark.slow),
        pytest.param(150, 256, 8, 256, 0, False, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_routes_as_defined(tokens, experts, chosen, here, first, renormalize):
    routing = Routing(chosen, here, renormalize, 1.0 if renormalize else 2.5)
    assert_same(step(tokens, experts), tokens, first, routing)


ROUTERS = {
    "sigmoid": {"score": "sigmoid"},
    "bias": {"score": "sigmoid", "has_bias": True},
    "softmax and bias": {"has_bias": True},
    "groups": {"groups": Groups(4, 2, best_two=False)},
    "two best": {"score": "sigmoid", "has_bias": True, "groups": Groups(8, 4, best_two=True)},
}
every_router = pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
# By default each router has one of the two steps, and one of them both.
_STEPS = {"one token": (1, 1, 64, 0), "many tokens": (40, 4, 16, 32)}
_IS_SLOW = {("one token", "bias"), *(("many tokens", name) for name in ROUTERS if name not in ("bias", "two best"))}
routers_and_steps = pytest.mark.parametrize(
    ("router", "tokens", "chosen", "here", "first"),
    [
        pytest.param(router, *sizes, id=f"{step}-{name}", marks=pytest.mark.slow if (step, name) in _IS_SLOW else ())
        for step, sizes in _STEPS.items()
        for name, router in ROUTERS.items()
    ],
)


@routers_and_steps
def test_other_routers(router, tokens, chosen, here, first):
    renormalized, plain = (Routing(chosen, here, renormalize, 2.5, **router) for renormalize in (True, False))
    assert_same(step(tokens, 64), max(1, tokens - 3), first, renormalized)
    assert_same(step(tokens, 64, values=[-1.0, 0.0, 2.0]), tokens, first, plain)  # many are equal


def assert_a_broken_token_stays_alone(router, target):
    """Its weights are NaN, and it has C different experts all the same."""
    logits, x = step(16, 64)
    routing = Routing(4, 64, renormalize=True, **router)
    found = ROUTED(logits.at[5].set(jnp.nan), x, 16, 0, routing, target=target, **bias_of(routing, 64))
    is_finite = np.isfinite(np.asarray(found.weights)).all(axis=1)
    np.testing.assert_array_equal(is_finite, np.arange(16) != 5)
    assert sorted(np.asarray(found.places).reshape(-1)) == list(range(64))


@every_router
def test_of_other_routers_what_is_not_finite_stays_in_its_token(router):
    assert_a_broken_token_stays_alone(router, PLAIN)


def test_weights_of_the_chosen_may_all_be_0():
    """The bias chooses the experts that the softmax leaves nothing."""
    logits = jnp.full((8, 16), -200.0).at[:, 0].set(0.0)
    bias = jnp.full(16, 2.0).at[0].set(0.0)
    routing = Routing(2, 16, renormalize=True, has_bias=True)
    for backend in ("tpu", "reference"):
        found = ROUTED(logits, jnp.ones((8, 40), jnp.bfloat16), 8, 0, routing, bias=bias, backend=backend, target=PLAIN)
        np.testing.assert_array_equal(found.weights, 0.0)


@pytest.mark.slow
def test_a_simulated_tpu_routes_as_deepseeks_router():
    groups = Groups(8, 4, best_two=True)
    routing = Routing(8, 32, renormalize=True, scale=2.5, score="sigmoid", has_bias=True, groups=groups)
    assert_same(step(64, 256), 60, 32, routing, SIMULATED)


@pytest.mark.slow
def test_a_simulated_tpu_routes_as_defined():
    assert_same(step(64, 128), 60, 32, Routing(8, 32, renormalize=True), SIMULATED)


@pytest.mark.parametrize(
    ("values", "renormalize"), [([0.0], True), ([0.0, 1.0], False), ([-200.0, 0.0], True), ([-np.inf, 1.0], False)]
)
def test_of_equal_experts_the_first_are_chosen(values, renormalize):
    """Of shares that are 0 as well, and of those that exp has made equal."""
    assert_same(step(40, 24, values=values), 40, 8, Routing(8, 8, renormalize))


@pytest.mark.parametrize("num_tokens", [0, 37])
def test_padding_has_no_expert(num_tokens):
    found = assert_same(step(48, 32), num_tokens, 8, Routing(4, 8, renormalize=True))
    assert (np.asarray(found.places[num_tokens:]) == -1).all()
    assert not np.asarray(found.weights[num_tokens:]).any()


def test_padding_may_be_broken():
    logits, x = step(16, 32)
    routing = Routing(4, 32, renormalize=True)
    whole = assert_same((logits, x), 15, 0, routing)
    broken = assert_same((logits.at[15].set(jnp.nan), x), 15, 0, routing)
    for one, other in zip(whole, broken, strict=True):
        np.testing.assert_array_equal(one[: int(whole.sizes.sum())], other[: int(whole.sizes.sum())])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_token(value):
    """Logits of a token make its weights NaN, it has C different experts all the same; x makes its rows infinite."""
    logits, x = step(16, 32)
    routing = Routing(4, 32, renormalize=True)
    found = ROUTED(logits.at[5, 7].set(value), x.at[9, 3].set(value), 16, 0, routing, target=PLAIN)
    assert np.isnan(found.weights[5]).all() == (value != -np.inf)
    others = np.arange(16) != 5
    assert np.isfinite(np.asarray(found.weights)[others]).all()
    assert sorted(np.asarray(found.places).reshape(-1)) == list(range(64))
    of_nine = np.isin(np.arange(64), np.asarray(found.places)[9])
    rows = np.asarray(found.rows, np.float32)
    assert np.isinf(rows[of_nine, 3]).all()
    assert np.isfinite(rows).sum() == rows.size - 4


def placed(tokens, chosen, rows, columns=256):
    """Products of so many rows, NaN behind them; weights, and places of which the other ones are -1."""
    rng = np.random.default_rng(rows)
    places = np.full(tokens * chosen, -1, np.int32)
    places[rng.permutation(tokens * chosen)[:rows]] = np.arange(rows)
    places = places.reshape(tokens, chosen)
    products = rng.normal(size=(tokens * chosen, columns))
    products[rows:] = np.nan
    weights = np.where(places >= 0, rng.uniform(size=places.shape), 0.0)
    return jnp.asarray(products, jnp.bfloat16), jnp.asarray(weights, jnp.float32), jnp.asarray(places)


SUMMED = jax.jit(sum_experts, static_argnames=("dtype", "backend", "target"))


def added_up(arrays, backend="tpu", target=PLAIN):
    return np.array(SUMMED(*arrays, dtype=jnp.float32, backend=backend, target=target))


@pytest.mark.parametrize("rows", [0, 300, 640])
@pytest.mark.parametrize("target", [PLAIN, pytest.param(SIMULATED, marks=pytest.mark.slow)])
def test_the_kernel_adds_up_as_defined(rows, target):
    """Of no chunk of rows, and of one to three; rows behind them may be anything."""
    arrays = placed(80, 8, rows)
    assert can_sum_experts(arrays[0], arrays[2], 512, target=target)
    np.testing.assert_allclose(added_up(arrays, target=target), added_up(arrays, "reference"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_row_breaks_its_token_alone(value):
    products, weights, places = placed(48, 8, 300)
    whole = added_up((products, weights, places))
    broken = added_up((products.at[7, 3].set(value), weights, places))
    token = np.argwhere(np.asarray(places) == 7)[0][0]
    assert not np.isfinite(broken[token, 3])
    broken[token, 3] = whole[token, 3]
    np.testing.assert_array_equal(broken, whole)


@pytest.mark.parametrize(
    ("tokens", "columns", "kind", "here"),
    [(72, 256, "v6e", 1), (80, 384, "v6e", 1), (256, 4096, "7x", 1), (256, 2048, "v4", 1), (256, 2048, "v5e", 2048)],
)
def test_other_sums_are_left_to_xla(tokens, columns, kind, here):
    """Of half tiles, of too many numbers, and where a gather of all rows takes fewer cycles."""
    products, places = jnp.zeros((tokens * 8, columns), jnp.bfloat16), jnp.zeros((tokens, 8), jnp.int32)
    assert not can_sum_experts(products, places, here, target=Target("tpu", kind))
    whole = jnp.zeros((640, 256), jnp.bfloat16), jnp.zeros((80, 8), jnp.int32)
    assert can_sum_experts(*whole, 512, target=Target("tpu", kind))


@pytest.mark.parametrize(
    ("tokens", "experts", "routing", "dtype"),
    [
        (512, 128, Routing(8, 128, renormalize=True), jnp.bfloat16),
        (64, 512, Routing(8, 128, renormalize=True), jnp.bfloat16),
        (64, 128, Routing(20, 128, renormalize=True), jnp.bfloat16),
        (64, 128, Routing(8, 128, renormalize=True), jnp.float32),
        (131, 128, Routing(1, 128, renormalize=True), jnp.bfloat16),
        (64, 60, Routing(4, 60, renormalize=True, has_bias=True), jnp.bfloat16),
        (64, 96, Routing(4, 96, renormalize=True, groups=Groups(8, 4, best_two=True)), jnp.bfloat16),
    ],
)
def test_other_steps_are_left_to_xla(tokens, experts, routing, dtype):
    x = jnp.zeros((tokens, 256), dtype)
    assert not can_route_experts(x, experts, routing, backend="tpu", target=Target("tpu", "v6e"))


@pytest.mark.parametrize(("backend", "platform"), [("auto", "cpu"), ("xla", "gpu"), ("xla", "tpu")])
def test_other_backends_leave_it_to_xla(backend, platform):
    routing = Routing(8, 128, renormalize=True)
    x = jnp.zeros((64, 256), jnp.bfloat16)
    assert not can_route_experts(x, 128, routing, backend=backend, target=Target(platform))
