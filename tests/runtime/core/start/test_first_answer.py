"""A first answer that is compared with the portable implementation: what agrees, what does not, and what follows."""

import math

import jax
import jax.numpy as jnp
import pytest

from palladio.pallas_kernels.ragged_paged_attention.api import BACKENDS
from palladio.runtime.core.start.first_answer import BOUNDS, OUTPUT_TOKENS, FirstAnswer
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from tests.runtime.tiny_engine import Collector, build_tiny_model_dir, create_core, random_prompt

SIZES = {"max_running_requests": 2, "cuda_graph_bs": (1,), "compile": "lazy", "fail_on_recompile": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_model_dir(tmp_path_factory.mktemp("first-answer"))


def create(folder, **flags):
    return create_core(folder, **{**SIZES, "start_check": "always", **flags})


def generate(core):
    collector = Collector(core)
    collector.add("a", random_prompt(30), max_tokens=6)
    return collector.run().outcome("a").tokens


def test_an_engine_whose_first_answer_agrees_is_not_degraded_and_answers_as_ever(folder, monkeypatch, caplog):
    with caplog.at_level("INFO"):
        core = create(folder)
    assert core.ready.degraded == ""
    assert [line for line in caplog.messages if line.startswith("The first answer agrees with the portable")]
    monkeypatch.setattr(FirstAnswer, "__init__", lambda *_: pytest.fail("nobody asked"))
    assert generate(core) == generate(create(folder, start_check="auto"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda out: out.at[..., 0].multiply(40.0), id="wrong"),
        pytest.param(lambda out: out.at[-1].set(jnp.nan), id="NaN in the last row", marks=pytest.mark.slow),
    ],
)
def test_an_engine_whose_kernel_is_wrong_serves_and_says_so(folder, monkeypatch, caplog, damage):
    right = BACKENDS["xla"]
    monkeypatch.setitem(BACKENDS, "xla", lambda *arguments: damage(right(*arguments)))
    jax.clear_caches()  # jax keeps what it has traced of a layer
    try:
        core = create(folder)
        tokens = generate(core)
    finally:
        jax.clear_caches()
    assert "xla" in core.ready.degraded
    assert "reference" in core.ready.degraded, "the backend to use instead"
    assert f"{BOUNDS['float32']:g}" in core.ready.degraded
    assert core.ready.degraded in [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert tokens


def test_on_which_platforms_a_start_is_checked():
    chosen = {mode: [ExecutionConfig(start_check=mode).checks_start(platform) for platform in ("cpu", "tpu", "gpu")]
              for mode in ("auto", "always", "never")}  # fmt: skip
    assert chosen == {"auto": [False, True, True], "always": [True] * 3, "never": [False] * 3}


@pytest.mark.parametrize(
    ("differences", "is_wrong"),
    [([0.0] * 8, False), ([0.15] + [0.0] * 7, False), ([0.03] * 8, True), ([math.nan] + [0.0] * 7, True)],
)
def test_the_mean_difference_counts_and_a_nan_is_one(differences, is_wrong):
    assert len(differences) == OUTPUT_TOKENS
    problem = FirstAnswer("tpu", "xla", differences, 0.02).problem
    assert bool(problem) == is_wrong
    if is_wrong:
        assert "--attention-backend xla" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"compile": "background"},
        {"compile": "full", "num_continuous_decode_steps": 2},
        {"speculative_algorithm": "NGRAM"},
        {"deterministic": True, "cuda_graph_bs": None},
        {"chunked_prefill_size": 16},
        {"is_embedding": True, "cuda_graph_bs": None},
    ],
    ids=str,
)
def test_whatever_the_engine_does_the_first_answer_agrees(folder, flags):
    core = create(folder, **flags)
    assert core.ready.degraded == ""
