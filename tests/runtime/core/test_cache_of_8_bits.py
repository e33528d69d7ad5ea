"""--kv-cache-dtype fp8_*, int8: the engine computes with rounded keys and values."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.cache.paged_cache import page_values
from palladio.pallas_kernels.kv_cache_update import api
from palladio.pallas_kernels.ragged_paged_attention import ScaledPages, scale_page_shape
from palladio.runtime.core.plan.dtypes import _DTYPES
from tests.many_devices import call_with_devices
from tests.runtime.core import mesh_requests
from tests.runtime.core.mesh_requests import assert_same
from tests.runtime.tiny_engine import Collector, build_tiny_model_dir, create_core, random_prompt

# Of layers that no other engine has: it would be traced with the rounding that the test adds, or without.
WIDTHS = {"fp8_e4m3": 104, "fp8_e5m2": 112, "int8": 120}


def round_trip(name, x):
    """x [T, K, H] as a cache gives it back."""
    if name != "int8":
        return x.astype(_DTYPES[name]).astype(x.dtype)
    step = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-30) / 127
    return jnp.round(x / step) * step


def run(folder, **flags):
    """Tokens, and log-probabilities of output and prompt; the second prompt begins as the first one."""
    core = create_core(folder, compile="lazy", fail_on_recompile=False, cache_self_check=1.0, **flags)
    collector = Collector(core)
    prompt = random_prompt(40)
    for name, ids in (("first", prompt), ("again", [*prompt[:36], *random_prompt(9, 1)])):
        collector.add(name, ids, max_tokens=12, logprobs=0, prompt_logprobs=0 if name == "first" else None)
        collector.run()
    assert collector.cached_tokens["again"] == 36
    stats = core.stats()
    assert (stats.num_self_checks, stats.num_self_check_failures) == (1, 0)
    chosen = [entry.logprob for name in ("first", "again") for entry in collector.logprobs[name]]
    shown = [entry.logprob for entry in collector.prompt_logprobs["first"] if entry.logprob is not None]
    return collector.tokens, np.array([*chosen, *shown])


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("fp8_e4m3", "fp8_e5m2")), "int8"]
)
def test_it_is_as_if_keys_and_values_had_been_rounded(name, tmp_path, monkeypatch) -> None:
    folder = build_tiny_model_dir(tmp_path)
    flags = {"cuda_graph_bs": (1,), "json_model_override_args": json.dumps({"intermediate_size": WIDTHS[name]})}
    tokens, logprobs = run(folder, kv_cache_dtype=name, **flags)
    pack_rows = api.pack_rows  # type: ignore[attr-defined]

    def rounded(k, v, *rest):
        return pack_rows(*(round_trip(name, x) for x in (k, v)), *rest)

    monkeypatch.setattr(api, "pack_rows", rounded)
    expected_tokens, expected = run(folder, kv_cache_dtype="float32", **flags)
    assert tokens == expected_tokens
    np.testing.assert_allclose(logprobs, expected, atol=1e-5, rtol=0)


def test_pages_of_int8_are_compared_by_what_they_mean() -> None:
    """Half the numbers with twice the scale are the same keys and values."""
    rows = 2 * np.random.default_rng(0).integers(-60, 61, (2, 3, 8, 128)).astype(np.int8)
    scales = np.ones(scale_page_shape(2, 3, 8), np.float32)
    rows[1], scales[1] = rows[0] // 2, 2
    first, second = (page_values(ScaledPages(jnp.asarray(rows), jnp.asarray(scales)), jnp.int32(i)) for i in (0, 1))
    np.testing.assert_array_equal(np.sort(first, axis=None), np.sort(rows[0].astype(np.float32), axis=None))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_int8_on_devices_that_share_the_heads(tmp_path) -> None:
    """A head's scales lie on the device that has the head."""
    folder, flags = build_tiny_model_dir(tmp_path), {"kv_cache_dtype": "int8", "load_format": "dummy"}
    meshes = [[1, 1, 1], [1, 2, 1], [2, 4, 1]]
    one, *others = call_with_devices(mesh_requests.__name__, "model_on_meshes", str(folder), meshes, flags)
    for found in others:
        assert_same(found, one, num_logprobs=60)
