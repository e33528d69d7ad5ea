"""A mixture's rows in the order of their experts: by comparing and multiplying, as on a TPU, what sorting gives."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from palladio.model.base.module import Context
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.layers.expert_rows import (
    COMPARED,
    RowOrder,
    experts_of_rows,
    sum_of_placed,
    take_by_product,
    take_rows,
)
from palladio.model.layers.moe import SparseMLP
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.expert_routing import can_sum_experts
from palladio.pallas_kernels.target import Target
from tests.many_devices import call_with_devices
from tests.tiny_model import tiny_config

TPU, V5E, CPU = Target("tpu", "v6e"), Target("tpu", "v5e"), Target("cpu")


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts"),
    [
        *((1, 1, 1), (128, 8, 128)),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 8, 32), (17, 3, 5), (40, 2, 1))),
    ],
)
def test_compared_rows_are_where_sorted_ones_are(tokens, chosen, experts):
    assert tokens * chosen <= COMPARED
    numbers = np.random.default_rng(tokens).integers(0, experts + 1, (tokens, chosen)).astype(np.int32)
    compared, in_order = (RowOrder.of(jnp.asarray(numbers), experts, target) for target in (TPU, CPU))
    flat = numbers.reshape(-1)
    expected = np.argsort(flat, kind="stable")
    for found in (compared, in_order):
        np.testing.assert_array_equal(found.order, expected)
        np.testing.assert_array_equal(found.tokens, expected // chosen)
        np.testing.assert_array_equal(found.places, np.argsort(expected))
        np.testing.assert_array_equal(found.sizes, np.bincount(flat, minlength=experts + 1)[:experts])


def test_a_product_takes_rows_to_the_bit():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((50, 70)) * 10.0 ** rng.integers(-30, 30, (50, 70)), jnp.bfloat16)
    numbers = jnp.asarray(rng.integers(0, 50, 90), jnp.int32)
    np.testing.assert_array_equal(take_by_product(x, numbers), take_rows(x, numbers))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_stay_in_their_row(value):
    x = jnp.ones((20, 8), jnp.bfloat16).at[7, 3].set(value)
    out = np.asarray(take_by_product(x, jnp.arange(20)), np.float32)
    assert np.isinf(out[7, 3])
    out[7, 3] = 1
    np.testing.assert_array_equal(out, 1.0)


def layer_for(target, backend="xla", family="qwen2_moe", mesh=None, **overrides):
    mesh = mesh or make_mesh(1)
    config = TensorLayout.over(ModelConfig.from_hf(tiny_config(family, **overrides)), mesh).config
    kernels = Kernels(backend, dataclasses.replace(target, interpret="plain"))
    return SparseMLP(Context(jnp.bfloat16, jnp.bfloat16, nnx.Rngs(1)), config, config.layers[-1].mlp, kernels, mesh)


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [(2, 1), (300, 300), pytest.param(21, 19, marks=pytest.mark.slow)],  # 300 × 4 are too many to compare
)
def test_a_layer_gives_the_same_bits(rows, tokens):
    x = jnp.asarray(np.random.default_rng(1).standard_normal((rows, 48)), jnp.bfloat16)
    by_product, by_number = (
        np.asarray(jax.jit(layer_for(target))(x, jnp.int32(tokens)), np.float32) for target in (TPU, CPU)
    )
    assert np.abs(by_number[:tokens]).max() > 0.01
    np.testing.assert_array_equal(by_product, by_number)


@pytest.mark.parametrize(
    ("family", "rows", "tokens"),
    [
        *(("qwen2_moe", 2, 1), ("gpt_oss", 20, 20)),
        *(pytest.param("qwen2_moe", *sizes, marks=pytest.mark.slow) for sizes in ((21, 19), (64, 50))),
    ],
)
def test_a_layer_with_the_kernel_gives_the_same_bits(family, rows, tokens):
    """Of gpt-oss with biases of logits and of experts."""
    by_number, by_kernel = layer_for(CPU, family=family), layer_for(TPU, "tpu", family)
    for layer in (by_number, by_kernel):
        for seed, bias in enumerate((layer.router_bias, layer.gate_bias, layer.up_bias, layer.down_bias)):
            if bias is not None:
                bias[...] = jnp.asarray(np.random.default_rng(seed).standard_normal(bias.shape), bias.dtype)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((rows, by_number.router.shape[0])), jnp.bfloat16)
    assert by_kernel._routing_of_kernel(x, by_kernel.router[...], by_kernel.router.shape[1]) is not None
    found, meant = (np.asarray(jax.jit(layer)(x, jnp.int32(tokens)), np.float32) for layer in (by_kernel, by_number))
    assert np.abs(meant[:tokens]).max() > 0.01
    np.testing.assert_array_equal(found, meant)


def compare_parts(num_parts: int) -> None:
    """Over four devices: each takes the rows of its own of six experts; for four parts there are two more places."""
    mesh = make_mesh(4, ep_size=num_parts)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((24, 48)), jnp.bfloat16)
    layers = (layer_for(target, backend, mesh=mesh) for target, backend in ((TPU, "tpu"), (TPU, "xla")))
    found, meant = (np.asarray(jax.jit(layer)(x, jnp.int32(22)), np.float32) for layer in layers)
    assert np.abs(meant).max() > 0.01
    np.testing.assert_array_equal(found, meant)


@pytest.mark.parametrize("num_parts", [pytest.param(4, marks=pytest.mark.slow), 2])
def test_experts_of_other_devices_are_left_to_them(num_parts):
    call_with_devices(__name__, "compare_parts", num_parts)


@pytest.mark.parametrize("tokens", [2, 160, pytest.param(150, marks=pytest.mark.slow)])
def test_placed_rows_are_added_up(tokens):
    """By products, by the kernel, and one by one; what is of no group may be NaN."""
    target = dataclasses.replace(V5E, interpret="plain")
    x = jnp.arange(1, 2 * tokens * 256 + 1, dtype=jnp.bfloat16).reshape(2 * tokens, 256).at[tokens:].set(jnp.nan)
    assert can_sum_experts(x, jnp.zeros((tokens, 2)), 2, target=target) == (tokens == 160)
    places = jnp.full((tokens, 2), -1).at[1].set([1, 0]).at[0].set([-1, 1])
    weights = jnp.where(places >= 0, 0.5, 0)
    out = np.asarray(jax.jit(partial(sum_of_placed, rows_here=2, target=target, dtype=jnp.float32))(x, weights, places))
    first, second = np.asarray(x[:2], np.float32)
    np.testing.assert_array_equal(out[:2], [second / 2, (first + second) / 2])
    assert not out[2:].any()


@pytest.mark.parametrize("family", ["qwen2_moe", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_a_layer_with_both_kernels_gives_the_same_bits(family):
    """With a shared expert, whose product is added in float32, and without."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((80, 256)), jnp.bfloat16)
    of_kernels, of_xla = (
        layer_for(target, backend, family, hidden_size=256, head_dim=16)
        for target, backend in ((V5E, "tpu"), (CPU, "xla"))
    )
    products = jnp.zeros((80 * of_xla.num_chosen, 256), x.dtype)
    assert can_sum_experts(products, jnp.zeros((80, 4)), len(products), target=V5E)
    found, meant = (np.asarray(jax.jit(layer)(x, jnp.int32(77)), np.float32) for layer in (of_kernels, of_xla))
    np.testing.assert_array_equal(found[:77], meant[:77])
    assert np.isfinite(found).all()


def test_sizes_tell_the_experts_of_rows():
    found = experts_of_rows(jnp.asarray([2, 0, 3, 1]), 9)
    np.testing.assert_array_equal(found, [0, 0, 2, 2, 2, 3, 3, 3, 3])


@pytest.mark.parametrize("backend", ["xla", "tpu"])
def test_a_broken_token_breaks_no_other(backend):
    x = jnp.asarray(np.random.default_rng(2).standard_normal((16, 48)), jnp.bfloat16)
    layer = layer_for(TPU, backend)
    computed = jax.jit(layer)
    whole = np.asarray(computed(x, jnp.int32(16)), np.float32)
    broken = np.asarray(computed(x.at[5].set(jnp.nan), jnp.int32(16)), np.float32)
    others = np.arange(16) != 5
    assert not np.isfinite(broken[5]).any()
    np.testing.assert_array_equal(broken[others], whole[others])
