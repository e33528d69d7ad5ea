"""An engine of --is-embedding: transformers' hidden states, pooled, however a prompt was computed."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from tests.model.make_goldens import GOLDENS, prompts
from tests.runtime.tiny_engine import FLAGS, TinyEngine
from tests.tiny_model import make_checkpoint, write_json
from tests.tiny_tokenizer import build_tiny_tokenizer

METHODS = {"last": "lasttoken", "mean": "mean_tokens", "cls": "cls_token"}
EMBEDS = {"is_embedding": True, "load_format": "auto", "skip_tokenizer_init": True}
URGENT = RequestOptions(priority=1000)
PROMPTS = prompts()  # of 1 to 75 tokens
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")


def checkpoint(folder: Path, method: str = "last", *, normalizes: bool = True) -> Path:
    make_checkpoint(folder, "qwen3")
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{METHODS[method]}": True})
    names = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [{"type": f"sentence_transformers.models.{n}", "path": p} for n, p in zip(names, paths, strict=False)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {method: checkpoint(tmp_path_factory.mktemp(method), method) for method in METHODS}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, TinyEngine]:
    return {method: TinyEngine(folder, **EMBEDS) for method, folder in folders.items()}


def add(core: EngineCore, name: str, prompt: list[int], options: RequestOptions = RequestOptions()) -> None:
    core.add(GenerationRequest(name, prompt, EMBEDDING_PARAMS, (), 0.0, options))


def finish(core: EngineCore) -> dict[str, TokenOutput]:
    """Runs all requests to their end."""
    found: dict[str, TokenOutput] = {}
    for _ in range(1000):
        if not core.has_work:
            break
        for output in core.step():
            assert isinstance(output, TokenOutput)
            assert output.request_id not in found, "there is one output"
            assert output.finish is not None
            found[output.request_id] = output
    stats = core.stats(check_integrity=True)
    assert (stats.integrity_error, stats.total.num_used_tokens, stats.num_compiles_after_ready) == (None, 0, 0)
    return found


def vector(output: TokenOutput) -> np.ndarray:
    assert output.embedding is not None
    return np.frombuffer(output.embedding, "<f4")


def embed(core: EngineCore, texts: list[list[int]]) -> np.ndarray:
    for index, prompt in enumerate(texts):
        add(core, str(index), prompt)
    outputs = finish(core)
    return np.stack([vector(outputs[str(index)]) for index in range(len(texts))])


def pooled(hidden: np.ndarray, method: str) -> np.ndarray:
    """As sentence-transformers defines it."""
    found = {"last": hidden[-1], "mean": hidden.mean(axis=0), "cls": hidden[0]}[method]
    return found / np.linalg.norm(found)


def test_golden(tmp_path):
    """Without torch: what the head makes of the vectors is what transformers once computed."""
    folder = checkpoint(tmp_path, normalizes=False)
    got = embed(TinyEngine(folder, **EMBEDS).core(), PROMPTS)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    np.testing.assert_allclose(got @ head.T, np.load(GOLDENS / "qwen3.npz")["logits"], atol=1e-4, rtol=0)


@needs_torch
@pytest.mark.torch
def test_against_transformers(folders, engines):
    import torch
    from transformers import AutoModel

    torch.set_num_threads(1)
    model = AutoModel.from_pretrained(folders["last"], dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0].numpy() for prompt in PROMPTS]
    for method, engine in engines.items():
        expected = np.stack([pooled(states, method) for states in hidden])
        np.testing.assert_allclose(embed(engine.core(), PROMPTS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_chunks_and_neighbours_change_nothing(engines, method):
    """Chunks of 32 tokens among others, and each prompt alone, in another order."""
    together = embed(engines[method].core(), PROMPTS)
    core = engines[method].core()
    for index in reversed(range(len(PROMPTS))):
        np.testing.assert_allclose(embed(core, [PROMPTS[index]])[0], together[index], atol=1e-6)


def test_a_prompt_in_one_step(folders, engines):
    whole = TinyEngine(folders["mean"], **EMBEDS | {"chunked_prefill_size": 128, "compile": "lazy"})
    np.testing.assert_allclose(
        embed(whole.core(), PROMPTS[-2:]), embed(engines["mean"].core(), PROMPTS[-2:]), atol=1e-6
    )


def test_the_last_token_takes_cached_prefixes(engines):
    core, prompt = engines["last"].core(), PROMPTS[-1]
    add(core, "first", prompt)
    first = finish(core)["first"]
    add(core, "again", prompt)
    add(core, "longer", [*prompt, 5, 6, 7])
    outputs = finish(core)
    assert first.cached_tokens == 0
    assert {name: output.cached_tokens for name, output in outputs.items()} == {"again": 72, "longer": 72}
    np.testing.assert_allclose(vector(outputs["again"]), vector(first), atol=1e-6)
    uncached = engines["last"].core(disable_radix_cache=True)
    np.testing.assert_allclose(vector(outputs["longer"]), embed(uncached, [[*prompt, 5, 6, 7]])[0], atol=1e-6)


@pytest.mark.parametrize("method", ["mean", "cls"])
def test_others_need_every_token_computed(engines, method):
    core = engines[method].core()
    for _ in range(2):
        add(core, "a", PROMPTS[-1])
        assert finish(core)["a"].cached_tokens == 0
    assert not core.stats().cache_enabled


@pytest.mark.parametrize("method", METHODS)
def test_a_retracted_prompt_begins_anew(engines, method):
    """An urgent prompt takes the pages of one that is half done."""
    expected = embed(engines[method].core(), PROMPTS[-2:])
    core = engines[method].core(schedule_policy="priority", max_total_tokens=104)
    add(core, "1", PROMPTS[-1])
    core.step()
    add(core, "0", PROMPTS[-2], URGENT)
    outputs = finish(core)
    assert (outputs["1"].num_retractions, outputs["0"].num_retractions) == (1, 0)
    np.testing.assert_allclose(np.stack([vector(outputs[name]) for name in "01"]), expected, atol=1e-6)


def test_slots_are_used_again(engines):
    """More requests than slots, whose sums must not add up."""
    core = engines["mean"].core()
    got = embed(core, [PROMPTS[index % len(PROMPTS)] for index in range(40)])
    for index, vector in enumerate(got):
        np.testing.assert_allclose(vector, got[index % len(PROMPTS)], atol=1e-6)


def test_the_programs_are_few(engines):
    forward = [key for key in engines["last"].programs if key.kind == "forward"]
    pool = [ProgramKey("pool", key.num_requests, key.num_tokens) for key in forward]
    assert set(engines["last"].programs) == {ProgramKey("tables"), *forward, *pool}
    assert all(key.num_tokens for key in forward)  # none decodes


@pytest.mark.parametrize("mode", ["lazy", pytest.param("background", marks=pytest.mark.slow)])
def test_programs_that_come_later(folders, engines, monkeypatch, mode):
    held: list[Any] = []
    monkeypatch.setattr(
        ProgramCache, "build_in_background", lambda self, keys, on_built: held.append((self, list(keys), on_built))
    )
    flags = EMBEDS | {"compile": mode, "chunked_prefill_size": 512, "max_total_tokens": 1024}
    engine = TinyEngine(folders["mean"], **flags)
    expected = embed(engines["mean"].core(), PROMPTS)
    assert len(engine.programs) == (0 if mode == "lazy" else 3)
    np.testing.assert_allclose(embed(engine.core(), PROMPTS), expected, atol=1e-6)
    for programs, keys, on_built in held:
        programs.build(keys, on_built)
        assert len(programs) == len(programs.declared)
        np.testing.assert_allclose(embed(engine.core(), PROMPTS), expected, atol=1e-6)


@pytest.mark.slow  # test_determinism.py has one shape
def test_one_shape(folders, engines):
    engine = TinyEngine(folders["mean"], **EMBEDS, deterministic=True)
    assert len(engine.programs) == 3
    np.testing.assert_allclose(embed(engine.core(), PROMPTS), embed(engines["mean"].core(), PROMPTS), atol=1e-6)


@pytest.mark.slow  # test_new_program.py exports programs
def test_programs_are_exported(folders, engines, tmp_path):
    flags = EMBEDS | {"compiled_dir": str(tmp_path), "compilation_cache_dir": "", "chunked_prefill_size": 16}
    compile_ahead(EngineConfig.from_flags({"model_path": str(folders["last"]), **FLAGS, **flags}))
    engine = TinyEngine(folders["last"], **flags)
    stats = engine.core().stats()
    assert {report.result for report in stats.compile.programs} == {"exported"}
    np.testing.assert_allclose(embed(engine.core(), PROMPTS), embed(engines["last"].core(), PROMPTS), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_memory_is_counted(engines, method):
    """No sampler, no masks of the vocabulary and no head; the sums where there are any."""
    runner, stats = engines[method]._parts.runner, engines[method].core().stats()
    state = runner.executor.state
    assert stats.memory.state == sum(x.nbytes for x in jax.tree.leaves(state.of_requests[1:]))
    assert state.sampler.output_counts.size == 0
    assert state.all_allowed == {}
    assert state.pooled.shape == (FLAGS["max_running_requests"] + 1, 0 if method == "last" else 48)
    assert stats.memory.weights == sum(x.nbytes for x in state.weights)
    assert sum(384 * 48 in (x.size,) for x in state.weights) == 1  # the embedding alone


def test_what_the_engine_says_of_itself(engines):
    for method, engine in engines.items():
        assert engine.core().ready.embedding == EmbeddingSpec(48, method, normalized=True)


def test_what_is_not_finite_ends_its_own_request_only(folders, tmp_path):
    folder = checkpoint(tmp_path, "mean")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    core = TinyEngine(folder, **EMBEDS, compile="lazy").core()
    add(core, "good", [5, 6])
    add(core, "bad", [5, 7])
    outputs = finish(core)
    assert np.isfinite(vector(outputs["good"])).all()
    assert outputs["bad"].embedding is None
    assert (outputs["bad"].finish.type, outputs["bad"].finish.status) == ("abort", 500)


def test_a_checkpoint_without_a_head(folders, engines, tmp_path):
    """As sentence-transformers saves them: the base model's class, and its tensors' names."""
    folder = checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    bare = {name.removeprefix("model."): value for name, value in weights.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": ["Qwen3Model"]})
    core = TinyEngine(folder, **EMBEDS, compile="lazy").core()
    np.testing.assert_allclose(embed(core, PROMPTS[:3]), embed(engines["last"].core(), PROMPTS[:3]), atol=1e-6)
    flags = {"model_path": str(folder), **FLAGS, "skip_tokenizer_init": True}
    with pytest.raises(ConfigError, match=r"'Qwen3Model' has no language-model head; start it with --is-embedding"):
        EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)


@pytest.mark.slow  # test_a_checkpoint_without_a_head has another family
@needs_torch
@pytest.mark.torch
def test_a_text_model_of_gemma3_without_a_head(tmp_path):
    """transformers calls it Gemma3TextModel; Gemma3Model takes images."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(1)
    folder = make_checkpoint(tmp_path, "gemma3", num_hidden_layers=3)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in weights.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": ["Gemma3TextModel"]})
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    assert type(model).__name__ == "Gemma3TextModel"
    found = embed(TinyEngine(folder, **EMBEDS, compile="lazy").core(), PROMPTS[5:8])
    with torch.inference_mode():
        hidden = [model(torch.tensor([prompt])).last_hidden_state[0, -1].numpy() for prompt in PROMPTS[5:8]]
    wanted = np.stack([row / np.linalg.norm(row) for row in hidden])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_attention_in_both_directions_is_refused(folders):
    override = {"json_model_override_args": '{"is_causal": false}'}
    flags = {"model_path": str(folders["last"]), **FLAGS, **EMBEDS, **override}
    with pytest.raises(ConfigError, match="is_causal: False is not supported"):
        EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)


def test_offline(folders, engines, tmp_path):
    folder = build_tiny_tokenizer(make_checkpoint(tmp_path, "qwen3"), vocab_size=384)
    flags = FLAGS | EMBEDS | {"skip_tokenizer_init": False, "compile": "lazy"}
    with Engine(folder, **flags) as engine:
        texts = ["Hello world", "again"]
        results: Any = engine.encode(texts, rid=["a", "b"])
        assert [result["meta_info"]["id"] for result in results] == ["a", "b"]
        ids = [engine.tokenizer.encode(text) for text in texts]
        got = np.array([result["embedding"] for result in results], np.float32)
        np.testing.assert_allclose(got, embed(engines["last"].core(), ids), atol=1e-6)  # last is the default
        one: Any = engine.encode(input_ids=ids[0], dimensions=5)
        np.testing.assert_allclose(one["embedding"], got[0, :5] / np.linalg.norm(got[0, :5]), atol=1e-6)
        assert one["meta_info"]["prompt_tokens"] == len(ids[0])
        for wrong in (0, 49, True):
            with pytest.raises(InvalidRequestError, match="dimensions must be in 1 … 48"):
                engine.encode("a", dimensions=wrong)
        for params in ({}, {"max_new_tokens": 0}):
            with pytest.raises(InvalidRequestError, match="generates no text"):
                engine.generate("a", params)
        json.dumps(results)
