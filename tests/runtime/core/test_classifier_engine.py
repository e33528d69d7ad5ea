"""An engine on a model that classifies: transformers' logits of every prompt, however it was computed."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.loading.orbax_weights import convert
from palladio.model.loading.stored_config import agree_with_weights
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.text.tokenizers.pair_prompts import pair_prompt
from tests.many_devices import call_with_devices
from tests.model.make_goldens import GOLDENS, prompts
from tests.runtime.tiny_engine import FLAGS, TinyEngine, create_core
from tests.tiny_model import make_checkpoint, write_json
from tests.tiny_tokenizer import build_tiny_tokenizer

EMBEDS = {"is_embedding": True, "load_format": "auto", "skip_tokenizer_init": True}
PROMPTS = prompts()  # of 1 to 75 tokens
ROWS = [5, 77, 200]  # of the language model's head, which make one of three labels
BIAS = np.float32([0.5, -1.25, 2.0])
LABELS = {"id2label": {"0": "bad", "1": "fair", "2": "good"}, "pad_token_id": 3}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")


def classifier(folder: Path, family: str = "qwen3", *, has_bias: bool = False, **config: Any) -> Path:
    """A checkpoint whose labels are some rows of the head that the goldens are of."""
    make_checkpoint(folder, family)
    weights = load_file(folder / "model.safetensors")
    head = weights.pop("lm_head.weight", weights["model.embed_tokens.weight"])
    weights["score.weight"] = head[ROWS].copy()
    if has_bias:
        weights["score.bias"] = BIAS
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found = json.loads((folder / "config.json").read_text())
    name = found["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    write_json(folder / "config.json", found | LABELS | {"architectures": [name]} | config)
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return TinyEngine(classifier(tmp_path_factory.mktemp("classifier"), has_bias=True), **EMBEDS)


@pytest.fixture(scope="module")
def golden() -> np.ndarray:
    return np.load(GOLDENS / "qwen3.npz")["logits"]


def classify(core: EngineCore, texts: list[list[int]]) -> np.ndarray:
    for index, prompt in enumerate(texts):
        core.add(GenerationRequest(str(index), prompt, EMBEDDING_PARAMS, (), 0.0))
    found: dict[str, TokenOutput] = {}
    while core.has_work:
        found |= {output.request_id: output for output in core.step() if isinstance(output, TokenOutput)}
    stats = core.stats(check_integrity=True)
    assert stats.integrity_error is None
    return np.stack([np.frombuffer(found[str(index)].embedding or b"", "<f4") for index in range(len(texts))])


def test_the_logits_are_those_of_transformers(engine: TinyEngine, golden: np.ndarray) -> None:
    """Batches of different lengths, in chunks of 32 tokens, with the head's bias; then from cached prefixes."""
    core = engine.core()
    for _ in range(2):
        np.testing.assert_allclose(classify(core, PROMPTS), golden[:, ROWS] + BIAS, atol=1e-4, rtol=0)
    total = core.stats().total
    assert total.num_hit_tokens > 0
    spec = core.ready.embedding
    assert spec is not None
    assert (spec.size, spec.pooling, spec.normalized) == (3, "last", False)
    assert spec.classes is not None
    assert (spec.classes.labels, spec.classes.activation) == (["bad", "fair", "good"], "softmax")
    assert (spec.classes.pad_token_id, spec.classes.judges) == (3, False)


def over_devices(folder: str) -> list[list[float]]:
    core = create_core(Path(folder), **EMBEDS, tp_size=2, dp_size=2, compile="lazy", fail_on_recompile=False)
    found: list[list[float]] = classify(core, PROMPTS).tolist()
    return found


@pytest.mark.slow  # test_states.py has such ranks
def test_over_ranks_of_two_devices(tmp_path: Path, golden: np.ndarray) -> None:
    found = call_with_devices(__name__, "over_devices", str(classifier(tmp_path)))
    np.testing.assert_allclose(found, golden[:, ROWS], atol=1e-4, rtol=0)


def test_converted(tmp_path: Path, golden: np.ndarray) -> None:
    """The head's bias is there, too."""
    folder, out = classifier(tmp_path / "stored", has_bias=True), tmp_path / "converted"
    config = agree_with_weights(folder, ModelConfig.from_hf(*read_model_dir(folder)), "safetensors")
    convert(folder, out, config, "float32", lambda done, total: None)
    core = TinyEngine(out, **EMBEDS, compile="lazy").core()
    np.testing.assert_allclose(classify(core, PROMPTS[:3]), golden[:3, ROWS] + BIAS, atol=1e-4, rtol=0)


RERANKER = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": [5, 77]}


@pytest.mark.parametrize(
    ("family", "override"),
    [
        ("qwen3", {}),
        ("qwen3", {"is_original_qwen3_reranker": True}),
        pytest.param(
            "qwen2_tied",
            {"architectures": ["Qwen2ForSequenceClassification"], "method": "from_2_way_softmax"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_tokens_in_place_of_a_head(tmp_path: Path, family: str, override: dict[str, Any]) -> None:
    """A causal model as vLLM's overrides make it a classifier; of two tokens the difference is one label."""
    logits = np.load(GOLDENS / f"{family}.npz")["logits"]
    expected = logits[:, [5, 77]] if not override else logits[:, [77]] - logits[:, [5]]
    make_checkpoint(tmp_path, family)
    flags = EMBEDS | {"json_model_override_args": json.dumps(RERANKER | override), "compile": "lazy"}
    core = TinyEngine(tmp_path, **flags).core()
    np.testing.assert_allclose(classify(core, PROMPTS[:4]), expected[:4], atol=1e-4, rtol=0)
    spec = core.ready.embedding
    assert spec is not None
    assert spec.classes is not None
    assert spec.classes.judges == bool(override)
    assert spec.classes.activation == ("sigmoid" if override else "softmax")


def test_offline(tmp_path: Path) -> None:
    """`encode` gives logits, of texts up to their padding; `rerank` scores of pairs."""
    folder = build_tiny_tokenizer(make_checkpoint(tmp_path, "qwen3"), vocab_size=384)
    override = RERANKER | {"is_original_qwen3_reranker": True, "pad_token_id": 3}
    flags = FLAGS | EMBEDS | {"skip_tokenizer_init": False, "compile": "lazy", "max_total_tokens": 4096}
    with Engine(folder, **flags, json_model_override_args=json.dumps(override)) as engine:
        tokenizer = engine.tokenizer
        assert tokenizer is not None
        texts = [*PROMPTS[:2], [*PROMPTS[1], 3, 3], [3, 3]]
        results: Any = engine.encode(input_ids=texts)
        logits = [result["embedding"] for result in results]
        assert np.shape(logits) == (4, 1)
        assert logits[2] == pytest.approx(logits[1], abs=1e-5)
        golden = np.load(GOLDENS / "qwen3.npz")["logits"]
        assert logits[1] == pytest.approx(golden[1, [77]] - golden[1, [5]], abs=1e-4)
        pairs = [["which", "one"], ["which", "other"]]
        results = engine.rerank(pairs, instruct="Find it")
        ids = [pair_prompt("judged", *pair, instruction="Find it").encode(tokenizer).ids for pair in pairs]
        expected: Any = engine.encode(input_ids=ids)
        for result, other in zip(results, expected, strict=True):
            assert result["embedding"] == pytest.approx(1 / (1 + np.exp(-other["embedding"][0])), abs=1e-5)
            assert result["meta_info"]["prompt_tokens"] == other["meta_info"]["prompt_tokens"]
        assert engine.rerank([]) == []
        for wrong in (["ab"], [["a", ""]], [["a", "b", "c"]]):
            with pytest.raises(InvalidRequestError, match="pairs of texts"):
                engine.rerank(wrong)
        with pytest.raises(InvalidRequestError, match="needs a model that generates"):
            engine.score("a", ["b"], [5])


def create(folder: Path, **flags: Any) -> None:
    config = EngineConfig.from_flags({"model_path": str(folder), **FLAGS, **EMBEDS, **flags})
    EngineCore.create(config, lambda progress: None)


def test_tokens_are_found_in_the_tokenizer(tmp_path: Path) -> None:
    folder = build_tiny_tokenizer(make_checkpoint(tmp_path, "qwen3"), vocab_size=384)
    for tokens, error in (
        (["a", "yes, certainly"], "'yes, certainly' is not a token of this model"),
        ([5, 384], "classifier_from_token: 384 is not a token of this model"),
        ("yes", "classifier_from_token must be a list of tokens"),
        (["a", "b", "c"], "classifier_from_token must be two tokens"),
    ):
        override = RERANKER | {"classifier_from_token": tokens, "is_original_qwen3_reranker": True}
        with pytest.raises(ConfigError, match=error):
            create(folder, json_model_override_args=json.dumps(override))


def test_what_cannot_be_served(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    with pytest.raises(ConfigError, match=r"'Qwen3ForSequenceClassification' has no .* start it with --is-embedding"):
        create(folder, is_embedding=False)
    with pytest.raises(ConfigError, match=r"score\.weight .* has shape \(3, 48\), config\.json requires \(4, 48\)"):
        create(folder, json_model_override_args='{"id2label": {"3": "best"}}')
    for override, error in (
        ('{"problem_type": "ranking"}', "problem_type must be one of regression"),
        ('{"sentence_transformers": {"activation_fn": "torch.nn.GELU"}}', "activation_fn: .*GELU.* is not supported"),
        ('{"id2label": {"5": "d"}}', "id2label must number the labels from 0 to 3"),
    ):
        with pytest.raises(ConfigError, match=error):
            create(folder, json_model_override_args=override)


FAMILIES = ("qwen2",)  # the logits of the others are those of their language models
MORE_FAMILIES = (
    "gemma2",
    *("qwen3", "llama3", "mistral", "phi3", "olmo2", "smollm3", "glm4", "starcoder2"),
    *("qwen2_moe", "mixtral", "olmo3", "qwen3_moe"),
)


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FAMILIES)])
def test_against_transformers_own_class(tmp_path: Path, family: str) -> None:
    """A padded batch of prompts, of which some end with the id of padding."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(1)
    folder = classifier(tmp_path, family)
    model, info = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    texts = [*PROMPTS, [*PROMPTS[3], 3, 3], [7, 3, 8, 3]]
    width = max(map(len, texts))
    padded = torch.tensor([text + [3] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    with torch.inference_mode():
        expected = model(padded, attention_mask=mask).logits.numpy()
    engine = TinyEngine(folder, **EMBEDS, compile="lazy")
    core = engine.core()
    classes = core.ready.embedding.classes
    got = classify(core, [classes.without_padding(text) for text in texts])
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
