"""Real servers of models with a head for classes: transformers' numbers, by each spelling of the routes."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.integration.serving import DECODE_SIZES, LIMITS, Server, launch_command
from tests.tiny_model import make_checkpoint, write_json
from tests.tiny_tokenizer import build_tiny_tokenizer

QUERY, DOCUMENTS = "What is the cap", ["ital of France?", "x", "Berlin is a large city. " * 4]
TEXTS = [QUERY, *DOCUMENTS]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch"),
]


def classifier(folder: Path, family: str, num_labels: int) -> Path:
    """With a random head, and transformers' own names."""
    build_tiny_tokenizer(make_checkpoint(folder, family))
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    weights.pop("lm_head.weight", None)
    weights["score.weight"] = np.random.default_rng(5).normal(size=(num_labels, config["hidden_size"])).astype("f4") / 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    name = config["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    labels = {"id2label": {str(i): f"class {i}" for i in range(num_labels)}, "pad_token_id": 0}
    write_json(folder / "config.json", config | labels | {"architectures": [name]})
    return folder


def logits_of(folder: Path, *texts: Any) -> np.ndarray:
    """Args: texts: each a text, or a pair of two."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        ids = [tokenizer(*((text,) if isinstance(text, str) else text))["input_ids"] for text in texts]
        return np.stack([model(torch.tensor([row])).logits[0].numpy() for row in ids])


@contextlib.contextmanager
def running(folder: Path, log: Path) -> Iterator[Server]:
    server = Server(launch_command(folder, f"{LIMITS.replace(DECODE_SIZES, '')} --is-embedding"), log)
    try:
        yield server
        server.check_clean()
    finally:
        server.stop()


def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_classes(family: str, environment: None, tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", family, 3)
    logits = logits_of(folder, *TEXTS)
    weights = np.exp(logits)
    expected = weights / weights.sum(axis=1, keepdims=True)
    with running(folder, tmp_path / "log") as server:
        for path in ("/v1/classify", "/classify"):
            found = post(server, path, {"input": TEXTS})["data"]
            np.testing.assert_allclose([one["probs"] for one in found], expected, atol=1e-5)
            assert [one["label"] for one in found] == [f"class {i}" for i in expected.argmax(axis=1)]
        raw = post(server, "/v1/classify", {"input": TEXTS, "use_activation": False})["data"]
        np.testing.assert_allclose([one["probs"] for one in raw], logits, atol=1e-4)
        error = server.http.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS})
        assert (error.status_code, "use /v1/classify" in error.text) == (400, True)


@pytest.mark.parametrize("family", ["qwen3", "qwen2_tied"])
def test_pairs(family: str, environment: None, tmp_path: Path) -> None:
    """Jina's and Cohere's rerank, vLLM's scores: each pair is transformers' text and text_pair."""
    folder = classifier(tmp_path / "model", family, 1)
    pairs = logits_of(folder, *((QUERY, document) for document in DOCUMENTS))[:, 0]
    expected = 1 / (1 + np.exp(-pairs))
    order = np.argsort(-expected).tolist()
    with running(folder, tmp_path / "log") as server:
        for names in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
            for path in ("/v1/score", "/score"):
                found = post(server, path, dict(zip(names, (QUERY, DOCUMENTS), strict=True)))["data"]
                np.testing.assert_allclose([one["score"] for one in found], expected, atol=1e-5)
        objects: list[Any] = [{"text": text} for text in DOCUMENTS]
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            for documents in (DOCUMENTS, objects):
                found = post(server, path, {"query": QUERY, "documents": documents, "top_n": 2})["results"]
                assert [one["index"] for one in found] == order[:2]
                np.testing.assert_allclose([one["relevance_score"] for one in found], expected[order[:2]], atol=1e-5)
                assert found[0]["document"]["text"] == DOCUMENTS[order[0]]
        raw = post(server, "/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False})["data"]
        np.testing.assert_allclose([one["score"] for one in raw], pairs, atol=1e-4)
