"""Thresholds where the devices of a group have a part each of every row's vocabulary."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.support.hlo_facts import loop_collectives
from palladio.model.base.sharding import GROUP_AXES, make_mesh
from palladio.runtime.execution.sampling.sampler import processed_logits
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from tests.many_devices import call_with_devices
from tests.runtime.execution.sampling.sampler_oracle import make_batch, random_logits

V = 320
ROWS = (
    {"top_k": 20, "top_p": 0.7, "temperature": 0.6},
    {"top_p": 0.9},
    {"top_k": 5, "min_p": 0.01},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.5},
    {"top_k": V, "temperature": 1.3},
)


def scores_on_a_mesh(ep_size, counts):
    """Of so many rows each: those of four devices, and those of one."""
    mesh = make_mesh(4, ep_size=ep_size)
    divided = NamedSharding(mesh, PartitionSpec(None, GROUP_AXES))
    jitted = jax.jit(processed_logits, static_argnames=("tier", "mesh"))
    found = []
    for count in counts:
        logits, batch = random_logits(count, V), make_batch(*(ROWS[number % len(ROWS)] for number in range(count)))
        state = SamplerState.allocate(2, V)
        one = jitted(logits, state, batch, tier="random")
        four = jitted(jax.device_put(logits, divided), state, batch, tier="random", mesh=mesh)
        found.append((np.asarray(four), np.asarray(one)))
    return found


@pytest.mark.parametrize("ep_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_keep_what_they_keep_on_one_device(ep_size):
    """Fewer rows than devices, rows that do not divide, and so many that parts are joined."""
    for four, one in call_with_devices(__name__, "scores_on_a_mesh", ep_size, (3, 34)):
        np.testing.assert_array_equal(np.isfinite(four), np.isfinite(one))
        np.testing.assert_allclose(four, one, rtol=1e-6)


def collectives_in_loops(num_rows):
    """With the mesh, and without it: then each device searches its part of the rows, as the compiler divides it."""
    mesh = make_mesh(4)
    logits = jax.ShapeDtypeStruct(
        (num_rows, V), np.float32, sharding=NamedSharding(mesh, PartitionSpec(None, GROUP_AXES))
    )
    args = logits, SamplerState.allocate(2, V), make_batch(*ROWS[:num_rows])
    found = []
    for known in (mesh, None):
        function = functools.partial(processed_logits, tier="random", mesh=known)
        found.append(loop_collectives(jax.jit(function).lower(*args).compile().as_text()))
    return found


@pytest.mark.slow  # reads a compiled program
def test_no_pass_of_a_search_waits_for_another_device():
    whole, divided = call_with_devices(__name__, "collectives_in_loops", 5)
    assert whole == {}
    assert sum(divided.values()) >= 2, "of top_k and of top_p"
