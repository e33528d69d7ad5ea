"""The routing of experts on a GPU, interpreted: what sorting gives."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.expert_routing import Groups, Routing, can_route_experts, can_sum_experts, route_experts
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.test_expert_routing import (
    ROUTED,
    assert_a_broken_token_stays_alone,
    every_router,
    routed_as_defined,
    routers_and_steps,
    step,
)

INTERPRETED = Target("gpu", "9.0", interpret="plain")


def assert_same(arrays, num_tokens, first, routing):
    found, meant = routed_as_defined(arrays, num_tokens, first, routing, "auto", INTERPRETED)
    rows, meant_rows = (np.asarray(routed.rows, np.float32) for routed in (found, meant))
    count = int(meant.sizes.sum())
    np.testing.assert_array_equal(rows[:count], meant_rows[:count])
    tokens = np.asarray(arrays[1], np.float32)
    missing = np.repeat(tokens, routing.num_chosen - (np.asarray(found.places) >= 0).sum(axis=1), axis=0)
    np.testing.assert_array_equal(rows[count:], missing)  # those of no expert here are some that are there
    return found


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "here", "first", "renormalize"),
    [
        pytest.param(*sizes, way, marks=() if way == quick_way else pytest.mark.slow)
        for *sizes, quick_way in (
            (2, 128, 8, 32, 96, True),
            (1, 8, 2, 8, 0, False),
            (144, 16, 1, 16, 0, True),
            (64, 128, 8, 32, 32, None),
            (48, 60, 4, 15, 15, None),
            (24, 60, 4, 60, 0, None),
            (16, 512, 10, 512, 0, None),
        )
        for way in (True, False)
    ],
)
def test_the_kernel_routes_as_defined(tokens, experts, chosen, here, first, renormalize):
    routing = Routing(chosen, here, renormalize, 1.0 if renormalize else 2.5)
    assert_same(step(tokens, experts), tokens, first, routing)


@routers_and_steps
def test_other_routers(router, tokens, chosen, here, first):
    renormalized, plain = (Routing(chosen, here, renormalize, 2.5, **router) for renormalize in (True, False))
    assert_same(step(tokens, 64), max(1, tokens - 3), first, renormalized)
    assert_same(step(tokens, 64, values=[-1.0, 0.0, 2.0]), tokens, first, plain)  # many are equal


@pytest.mark.slow  # another router is below, and these on a TPU are in test_expert_routing.py
@every_router
def test_of_other_routers_what_is_not_finite_stays_in_its_token(router):
    assert_a_broken_token_stays_alone(router, INTERPRETED)


@pytest.mark.parametrize("values", [[0.0], [0.0, 1.0], [-200.0, 0.0], [-np.inf, 1.0]])
def test_of_equal_experts_the_first_are_chosen(values):
    assert_same(step(40, 64, values=values), 40, 16, Routing(8, 16, renormalize=True))
    assert_same(step(40, 64, values=values), 40, 48, Routing(8, 16, renormalize=False))


@pytest.mark.parametrize("num_tokens", [0, 1, 37])
def test_padding_has_no_expert(num_tokens):
    logits, x = step(48, 32)
    found = assert_same((logits, x), num_tokens, 8, Routing(4, 8, renormalize=True))
    assert (np.asarray(found.places[num_tokens:]) == -1).all()
    assert not np.asarray(found.weights[num_tokens:]).any()


def test_what_is_not_finite_stays_in_its_token():
    """Its weights are NaN, and it has C different experts all the same."""
    logits, x = step(16, 32)
    routing = Routing(4, 32, renormalize=True)
    found = ROUTED(logits.at[5, 7].set(jnp.nan), x, 16, 0, routing, target=INTERPRETED)
    is_finite = np.isfinite(np.asarray(found.weights)).all(axis=1)
    np.testing.assert_array_equal(is_finite, np.arange(16) != 5)
    assert sorted(np.asarray(found.places).reshape(-1)) == list(range(64))


@pytest.mark.parametrize(
    ("tokens", "chosen", "backend", "target"),
    [
        (128, 8, "auto", INTERPRETED),
        (64, 20, "auto", INTERPRETED),
        (64, 8, "xla", INTERPRETED),
        (64, 8, "auto", Target("gpu", "7.5")),
    ],
    ids=["many shares", "many choices", "another backend", "an old GPU"],
)
def test_other_steps_are_left_to_xla(tokens, chosen, backend, target):
    x = jnp.zeros((tokens, 256), jnp.bfloat16)
    assert not can_route_experts(x, 128, Routing(chosen, 128, renormalize=True), backend=backend, target=target)


def test_of_other_routers_fewer_tokens_fit():
    """What experts are chosen by stands beside their scores."""
    routing = Routing(8, 256, renormalize=True, score="sigmoid", has_bias=True, groups=Groups(8, 4, best_two=True))
    for tokens, experts, is_taken in ((16, 256, True), (32, 256, False), (16, 160, False)):
        x = jnp.zeros((tokens, 256), jnp.bfloat16)
        assert can_route_experts(x, experts, routing, backend="auto", target=INTERPRETED) == is_taken


def test_a_gpu_without_such_kernels_is_an_error():
    logits, x = step(2, 8)
    with pytest.raises(NotImplementedError, match="compute capability"):
        route_experts(logits, x, 2, 0, Routing(2, 8, renormalize=True), target=Target("gpu", "7.5"))


def test_the_sum_is_left_to_xla():
    products, places = jnp.zeros((512, 2048), jnp.bfloat16), jnp.zeros((64, 8), jnp.int32)
    assert can_sum_experts(products, places, 512, target=Target("tpu", "v6e"))
    assert not can_sum_experts(products, places, 512, target=Target("gpu", "9.0"))
