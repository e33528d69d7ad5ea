"""Compiled programs that several files use: each set is built once in a pytest process, and compiled once in a run."""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import compile_cache
from tests.runtime.tiny_engine import TinyEngine, build_tiny_model_dir

EXACT_MODEL = {  # wide enough for the matrix products that larger models run
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "head_dim": 32,
    "vocab_size": 1000,
}


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_dir(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def build(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyEngine]:
    """Makes an engine of these flags. Of workers that want the same one, the later finds its programs in the cache."""
    shared = tmp_path_factory.getbasetemp().parent  # the workers of a run share this folder

    def make(**flags: Any) -> TinyEngine:
        name = hashlib.sha256(repr(sorted(flags.items())).encode()).hexdigest()[:16]
        with contextlib.closing((shared / f"engine-{name}.lock").open("w")) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return TinyEngine(tiny_dir, **flags)

    return make


@pytest.fixture(scope="session")
def tiny(build: Callable[..., TinyEngine]) -> TinyEngine:
    return build(chunked_prefill_size=64, cache_self_check=1.0, cuda_graph_bs=(1,))


@pytest.fixture(scope="session")
def three_steps(build: Callable[..., TinyEngine]) -> TinyEngine:
    """The same model; its decode programs take three steps."""
    return build(chunked_prefill_size=64, num_continuous_decode_steps=3, cuda_graph_bs=(1,), compile="lazy")


@pytest.fixture(scope="session")
def drafting(build: Callable[..., TinyEngine]) -> TinyEngine:
    """The same model; its decode steps verify three drafts."""
    return build(chunked_prefill_size=64, speculative_algorithm="NGRAM", cuda_graph_bs=(1,), compile="lazy")


@pytest.fixture(scope="session", params=["three_steps", "drafting"])
def several(request: pytest.FixtureRequest) -> TinyEngine:
    """The engines whose decode steps give several tokens."""
    engine: TinyEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(scope="session")
def exact(build: Callable[..., TinyEngine]) -> TinyEngine:
    """--deterministic, a wider model."""
    return build(deterministic=True, skip_tokenizer_init=True, json_model_override_args=json.dumps(EXACT_MODEL))


@pytest.fixture
def keeps_cache_options() -> Iterator[None]:
    """The test may set up jax's persistent cache as it likes."""
    with compile_cache.options_kept():
        yield
