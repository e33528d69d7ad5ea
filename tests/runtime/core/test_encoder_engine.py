"""An engine of an encoder: no cache, whole texts packed into steps, and vectors that no neighbour changes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, ContextLengthError, InvalidRequestError
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, ClassSpec, EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import PoolingParams
from palladio.runtime.text.hub.hub import resolve_source
from tests.many_devices import call_with_devices
from tests.model.encoder_driver import encode, load
from tests.runtime.tiny_engine import FLAGS, TinyEngine, create_core, record_batches
from tests.tiny_encoders import make_folder
from tests.tiny_tokenizer import build_tiny_tokenizer

LONGEST = 200
FLAGS_HERE: dict[str, Any] = {
    "is_embedding": True,
    "skip_tokenizer_init": True,
    "page_size": None,
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "chunked_prefill_size": 64,
    "context_length": LONGEST,
}
LENGTHS = (1, 5, 75, 33, 150, 12, 199, 200, 2)


def texts(*lengths: int) -> list[list[int]]:
    return [np.random.default_rng(length).integers(5, 384, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **FLAGS_HERE)


def add(core: EngineCore, name: str, ids: list[int], types: list[int] | None = None) -> None:
    pooling = PoolingParams(bytes(types or ()))
    core.add(GenerationRequest(name, ids, EMBEDDING_PARAMS, (), 0.0, pooling=pooling))


def finish(core: EngineCore) -> dict[str, TokenOutput]:
    """Runs all requests to their end."""
    found: dict[str, TokenOutput] = {}
    for _ in range(1000):
        if not core.has_work:
            break
        for output in core.step():
            assert isinstance(output, TokenOutput)
            found[output.request_id] = output
    stats = core.stats(check_integrity=True)
    assert (stats.integrity_error, stats.total.num_used_tokens, stats.num_compiles_after_ready) == (None, 0, 0)
    return found


def vector(output: TokenOutput) -> np.ndarray:
    assert output.embedding is not None
    return np.frombuffer(output.embedding, "<f4")


def embed(core: EngineCore, some: list[list[int]]) -> np.ndarray:
    for index, ids in enumerate(some):
        add(core, str(index), ids)
    outputs = finish(core)
    return np.stack([vector(outputs[str(index)]) for index in range(len(some))])


def expected(folder: Path, some: list[list[int]], types: list[list[int]] | None = None) -> np.ndarray:
    """The means of the model's hidden states, of length 1. What a text's neighbours change is tested with the model."""
    _, model = load(folder, load_format="dummy")
    means = [states.mean(axis=0) for states in encode(model, some, types)]
    return np.stack([one / np.linalg.norm(one) for one in means])


def test_vectors_are_those_of_each_text_alone(folder: Path, engine: TinyEngine) -> None:
    some = texts(*LENGTHS)
    meant = expected(folder, some)
    np.testing.assert_allclose(embed(engine.core(), some), meant, atol=1e-5, rtol=0)
    core = engine.core()
    for index in reversed(range(len(some))):
        np.testing.assert_allclose(embed(core, [some[index]])[0], meant[index], atol=1e-5, rtol=0)


def test_types_of_pairs(folder: Path, engine: TinyEngine) -> None:
    some = texts(30, 31)
    types = [[0] * 20 + [1] * 10, [0] * 31]
    core = engine.core()
    for index, text in enumerate(some):
        add(core, str(index), text, types[index])
    outputs = finish(core)
    found = np.stack([vector(outputs[name]) for name in "01"])
    np.testing.assert_allclose(found, expected(folder, some, types), atol=1e-5, rtol=0)
    assert np.abs(found[0] - expected(folder, some)[0]).max() > 1e-3


def test_texts_share_steps_and_none_is_cut(engine: TinyEngine) -> None:
    core = engine.core()
    batches = record_batches(core)
    embed(core, texts(*[20 + index for index in range(16)]))
    assert len(batches) == 3  # 440 tokens, 200 a step
    rows = [row for batch in batches for row in batch.chunks]
    assert all(row.start == 0 and row.num_tokens == len(row.request.token_ids) for row in rows)
    assert len(rows) == 16


def test_a_long_text_stops_short_ones_for_one_step(engine: TinyEngine) -> None:
    """It takes a step; those behind it fill the one before, as far as they fit, and come next."""
    core = engine.core()
    batches = record_batches(core)
    for name, length in (("first", 10), ("long", 200), ("a", 60), ("b", 70), ("c", 80)):
        add(core, name, texts(length)[0])
    finish(core)
    steps = [{row.request.given.request_id for row in batch.chunks} for batch in batches]
    assert steps == [{"first", "a", "b"}, {"long"}, {"c"}]


def test_the_programs_are_few(engine: TinyEngine) -> None:
    forward = [key for key in engine.programs if key.kind == "forward"]
    pool = [ProgramKey("pool", key.num_requests, key.num_tokens) for key in forward]
    assert set(engine.programs) == {ProgramKey("tables"), *forward, *pool}
    assert max(key.num_tokens for key in forward) == LONGEST


def test_there_is_no_cache(engine: TinyEngine) -> None:
    core = engine.core()
    stats, state = core.stats(), engine._parts.runner.executor.state
    assert state.kv_cache == ()
    assert stats.memory.kv_cache == 0
    assert stats.memory.weights == sum(array.nbytes for array in state.weights)
    assert stats.memory.state == sum(array.nbytes for array in jax.tree.leaves(state.of_requests[1:]))
    assert not stats.cache_enabled


def test_what_the_engine_says_of_itself(engine: TinyEngine) -> None:
    ready = engine.core().ready
    assert ready.embedding == EmbeddingSpec(48, "mean", normalized=True, is_encoder=True)
    assert ready.attention_kernels == "xla"
    assert ready.context_length == LONGEST


def test_one_shape(folder: Path, engine: TinyEngine) -> None:
    """With --deterministic a text's vector has the same bits, whatever else is in its step."""
    one = TinyEngine(folder, **FLAGS_HERE, deterministic=True)
    assert len(one.programs) == 3
    some = texts(40, 12, 75)
    together = embed(one.core(), some)
    np.testing.assert_allclose(together, embed(engine.core(), some), atol=1e-6)
    np.testing.assert_array_equal(embed(one.core(), some[:1]), together[:1])


@pytest.mark.slow
def test_programs_are_exported(folder: Path, engine: TinyEngine, tmp_path: Path) -> None:
    flags = FLAGS_HERE | {"compiled_dir": str(tmp_path), "compilation_cache_dir": ""}
    compile_ahead(EngineConfig.from_flags({"model_path": str(folder), **FLAGS, **flags}))
    other = TinyEngine(folder, **flags)
    assert {report.result for report in other.core().stats().compile.programs} == {"exported"}
    some = texts(40, 12)
    np.testing.assert_allclose(embed(other.core(), some), embed(engine.core(), some), atol=1e-6)


def test_what_is_not_finite_ends_its_own_request_only(folder: Path) -> None:
    """In one block of attention with others."""
    core = TinyEngine(folder, **FLAGS_HERE, compile="lazy").core()
    runner = core._runner
    bad = 7
    weights = list(runner.executor.state.weights)
    place = next(i for i, array in enumerate(weights) if array.shape == (384, 48))
    weights[place] = weights[place].at[bad].set(np.nan)
    runner.executor.state = runner.executor.state._replace(weights=tuple(weights))
    good = [one for one in texts(20)[0] if one != bad]
    meant = expected(folder, [good])[0]
    for name, ids in (("before", good), ("bad", [9, bad, 10]), ("after", good)):
        add(core, name, ids)
    outputs = finish(core)
    for name in ("before", "after"):
        np.testing.assert_allclose(vector(outputs[name]), meant, atol=1e-5)
    assert outputs["bad"].embedding is None


def on_devices(folder: str, flags: dict[str, Any]) -> list[list[float]]:
    """The vectors of texts, in another process."""
    core = create_core(Path(folder), **FLAGS_HERE, **flags, compile="lazy", fail_on_recompile=False)
    found: list[list[float]] = embed(core, texts(*LENGTHS)).tolist()
    return found


@pytest.mark.parametrize(
    "flags", [{"tp_size": 2, "dp_size": 2}, pytest.param({"tp_size": 4}, marks=pytest.mark.slow)], ids=str
)
def test_several_devices(folder: Path, engine: TinyEngine, flags: dict[str, Any]) -> None:
    found = call_with_devices(__name__, "on_devices", str(folder), flags)
    np.testing.assert_allclose(found, embed(engine.core(), texts(*LENGTHS)), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["MPNetModel", "ModernBertModel"])
def test_other_families(architecture: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, architecture)
    some = texts(75, 5, 150)
    core = TinyEngine(folder, **FLAGS_HERE, compile="lazy").core()
    np.testing.assert_allclose(embed(core, some), expected(folder, some), atol=1e-5, rtol=0)


def test_classes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "RobertaForSequenceClassification")
    core = TinyEngine(folder, **FLAGS_HERE, compile="lazy").core()
    classes = ClassSpec(["a", "b", "c"], "softmax")
    assert core.ready.embedding == EmbeddingSpec(3, "cls", normalized=False, classes=classes, is_encoder=True)
    some = texts(30, 4)
    _, model = load(folder, load_format="dummy")
    pooled = np.stack([states[0] for states in encode(model, some)])
    np.testing.assert_allclose(embed(core, some), np.asarray(model.classify(pooled)), atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"context_length": 600},
        {"cache_self_check": 0.5},
        {"kv_cache_dtype": "int8"},
        {"num_continuous_decode_steps": 2},
    ],
    ids=str,
)
def test_flags_that_are_refused(folder: Path, change: dict[str, Any]) -> None:
    flag = f"--{next(iter(change)).replace('_', '-')}"
    with pytest.raises(ConfigError, match=flag):
        create_core(folder, **FLAGS_HERE | change)


def test_offline_without_a_flag(tmp_path: Path) -> None:
    """The config is that of an encoder; a longer text than its positions is refused with both numbers."""
    folder = build_tiny_tokenizer(make_folder(tmp_path, max_position_embeddings=64), vocab_size=384)
    flags = {"load_format": "dummy", "random_seed": 0, "max_running_requests": 4, "compile": "lazy"}
    with Engine(folder, **flags) as engine:
        ids = texts(64, 9)
        results: Any = engine.encode(input_ids=ids)
        found = np.array([result["embedding"] for result in results], np.float32)
        np.testing.assert_allclose(found, expected(folder, ids), atol=1e-5)
        with pytest.raises(ContextLengthError) as refusal:
            engine.encode(input_ids=texts(65)[0])
        assert "65" in str(refusal.value)
        assert "64" in str(refusal.value)
        with pytest.raises(InvalidRequestError):
            engine.generate("a")


def test_an_encoder_makes_embeddings_without_a_flag(folder: Path, tmp_path: Path) -> None:
    config = EngineConfig.from_flags({"model_path": str(folder), "load_format": "dummy"})
    assert not config.source.is_embedding
    assert resolve_source(config.source).is_embedding
    decoder = json.loads((folder / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(decoder))
    assert not resolve_source(dataclasses.replace(config.source, model_path=str(tmp_path))).is_embedding
