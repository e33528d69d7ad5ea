"""--kv-cache-dtype fp8_*: the engine computes with rounded keys and values."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.kv_cache_update import api
from palladio.runtime.core.sizing import _DTYPES
from tests.runtime.tiny_engine import Collector, build_tiny_model_dir, create_core, random_prompt

# Of layers that no other engine has: it would be traced with the rounding that the test adds, or without.
WIDTHS = {"fp8_e4m3": 104, "fp8_e5m2": 112}


def run(folder, **flags):
    """Tokens, and log-probabilities of output and prompt; the second prompt begins as the first one."""
    core = create_core(folder, compile="lazy", fail_on_recompile=False, **flags)
    collector = Collector(core)
    prompt = random_prompt(40)
    for name, ids in (("first", prompt), ("again", [*prompt[:36], *random_prompt(9, 1)])):
        collector.add(name, ids, max_tokens=12, logprobs=0, prompt_logprobs=0 if name == "first" else None)
        collector.run()
    assert collector.cached_tokens["again"] == 36
    chosen = [entry.logprob for name in ("first", "again") for entry in collector.logprobs[name]]
    shown = [entry.logprob for entry in collector.prompt_logprobs["first"] if entry.logprob is not None]
    return collector.tokens, np.array([*chosen, *shown])


@pytest.mark.parametrize("name", ["fp8_e4m3", pytest.param("fp8_e5m2", marks=pytest.mark.slow)])
def test_it_is_as_if_keys_and_values_had_been_rounded(name, tmp_path, monkeypatch) -> None:
    folder = build_tiny_model_dir(tmp_path)
    flags = {"cuda_graph_bs": (1,), "json_model_override_args": json.dumps({"intermediate_size": WIDTHS[name]})}
    tokens, logprobs = run(folder, kv_cache_dtype=name, **flags)
    dtype, pack_rows = jnp.dtype(_DTYPES[name]), api.pack_rows  # type: ignore[attr-defined]

    def rounded(k, v, *rest):
        return pack_rows(*(x.astype(dtype).astype(x.dtype) for x in (k, v)), *rest)

    monkeypatch.setattr(api, "pack_rows", rounded)
    expected_tokens, expected = run(folder, kv_cache_dtype="float32", **flags)
    assert tokens == expected_tokens
    np.testing.assert_allclose(logprobs, expected, atol=1e-5, rtol=0)
