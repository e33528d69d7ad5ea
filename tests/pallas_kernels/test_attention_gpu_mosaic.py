"""The kernel for Hopper GPUs against the oracle, on the one suite of cases; interpreted, where this JAX can."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from palladio.pallas_kernels.ragged_paged_attention import api
from palladio.pallas_kernels.ragged_paged_attention.gpu import gpu_mosaic
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionOptions
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, make, metadata_of
from tests.pallas_kernels.interpret_mosaic import FAULTS, interpret, planted

HOPPER = Target("gpu", "9.0")
TAKEN = [  # cases are computed in bfloat16; those that only decode run on the Triton kernel
    case.name
    for case in CASES
    if case.kv_dtype == "float32"
    and case.kind == "prefill"
    and case.head_size in gpu_mosaic.HEAD_SIZES
    and case.page_size % 8 == 0
]
RACES = ["mixed, window", "several blocks", "sinks, window, mixed"]

interpreted = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 cannot interpret it")


@interpreted
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        pytest.param("plain", ["sinks, window, mixed", "pages before the window"], marks=pytest.mark.timeout(600)),
        pytest.param("plain", TAKEN, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param("eager", RACES, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),  # looks for races too
    ],
    ids=["two cases", "all cases", "races"],
)
def test_matches_the_oracle(mode, names):
    found = interpret(mode, names)
    assert sorted(found) == sorted(names)
    assert {name: error for name, error in found.items() if error > 0.02} == {}


@interpreted
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    found = planted(fault, "eager", "sinks, window, mixed")
    if isinstance(found, str):
        assert fault == "missing wait"
        assert re.search("(?i)race", found), found[-3000:]
    else:
        assert not found <= 0.02


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": Target("cpu")}, "for GPUs, not for cpu"),
        ({"target": Target("gpu", "8.0")}, "Hopper.*this GPU has 8.0"),
        ({"target": Target("gpu", "10.0")}, "Hopper.*this GPU has 10.0"),
        ({"head_size": 96}, "not of 96"),
        ({"kv_dtype": "int8"}, "bfloat16 with a cache of bfloat16, not bfloat16 with int8"),
        ({"page_size": 4}, "pages of 4 tokens .* set --page-size"),
        ({"page_size": 48}, "pages of 48 tokens .* set --page-size"),
    ],
)
def test_says_what_it_cannot_do(change, reason):
    head_size, target = change.get("head_size", 128), change.get("target", HOPPER)
    q = jax.ShapeDtypeStruct((1, 4, head_size), jnp.bfloat16)
    pages = (8, 2, change.get("page_size", 16), 2 * max(128, head_size))
    kv_pages = jax.ShapeDtypeStruct(pages, jnp.dtype(change.get("kv_dtype", "bfloat16")))
    metadata = metadata_of(make(CASES[0]), CASES[0])
    with pytest.raises(NotImplementedError, match=reason):
        gpu_mosaic.attention(q, kv_pages, metadata, AttentionOptions(1.0, target=target))


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="JAX can interpret it")
def test_an_old_jax_refuses_to_interpret_it():
    q, kv_pages = jnp.zeros((1, 4, 64), jnp.bfloat16), jnp.zeros((8, 2, 16, 128), jnp.bfloat16)
    options = AttentionOptions(1.0, target=dataclasses.replace(HOPPER, interpret="plain"))
    with pytest.raises(NotImplementedError, match="cannot interpret"):
        gpu_mosaic.attention(q, kv_pages, metadata_of(make(CASES[0]), CASES[0]), options)


@pytest.mark.parametrize(
    ("target", "version", "first"),
    [
        (HOPPER, (0, 12, 0), "gpu_mosaic"),
        (HOPPER, (0, 11, 2), "gpu_triton"),
        (Target("gpu", "8.0"), (0, 12, 0), "gpu_triton"),
        (Target("gpu"), (0, 12, 0), "gpu_triton"),
        (Target("tpu", "v6e"), (0, 12, 0), "tpu"),
    ],
)
def test_it_is_chosen_where_a_step_stays_one_cuda_graph(monkeypatch, target, version, first):
    monkeypatch.setattr(jax, "__version_info__", version)
    assert api.auto_order(target)[0] == first
