"""A first answer that is compared with the portable implementation: what agrees, what does not, and what follows."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from palladio.pallas_kernels.ragged_paged_attention import xla
from palladio.runtime.core.start.first_answer import OUTPUT_TOKENS, FirstAnswer
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from tests.runtime.tiny_engine import Collector, build_tiny_model_dir, create_core, random_prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_model_dir(tmp_path_factory.mktemp("first-answer"))


def create(folder, **flags):
    sizes = {"max_running_requests": 2, "cuda_graph_bs": (1,), "compile": "lazy", "fail_on_recompile": False}
    return create_core(folder, **{**sizes, "start_check": "always", **flags})


def generate(core):
    collector = Collector(core)
    collector.add("a", random_prompt(30), max_tokens=6)
    return collector.run().outcome("a").tokens


def test_an_engine_whose_first_answer_agrees_is_not_degraded_and_answers_as_ever(folder, caplog):
    with caplog.at_level("INFO"):
        core = create(folder)
    assert core.ready.degraded == ""
    assert [line for line in caplog.messages if line.startswith("The first answer agrees with the portable")]
    assert generate(core) == generate(create(folder, start_check="never"))
