"""Real servers of one Qwen3-Reranker, causal and converted: both give the share of "yes" that transformers computes."""

import contextlib
import importlib.util
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from palladio.runtime.text.tokenizers.pair_prompts import pair_prompt
from tests.integration.serving import DECODE_SIZES, LIMITS, Server, launch_command
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

DOCUMENTS = ["Paris is the capital of France.", "x", "Berlin is a large city. " * 4]
CONVERTED = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tokens for both answers."""
    folder = tmp_path_factory.mktemp("models") / "tiny-Reranker"
    build_tiny_tokenizer(make_checkpoint(folder, "qwen3", max_position_embeddings=1024), vocab_size=382)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])
    assert tokenizer.get_vocab_size() == 384
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@contextlib.contextmanager
def running(folder: Path, flags: str, log: Path) -> Iterator[Server]:
    server = Server(launch_command(folder, flags), log)
    try:
        yield server
        server.check_clean()
    finally:
        server.stop()


def shares(folder: Path) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = [tokenizer.token_to_id(word) for word in ("no", "yes")]
    found = []
    for document in DOCUMENTS:
        prompt = pair_prompt("judged", "What is the capital?", document, "Find it")
        ids = tokenizer.encode(prompt.head + prompt.body + prompt.tail).ids
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1, words]
        found.append(float(torch.softmax(logits, 0)[1]))
    return found


def test_both_forms_are_what_transformers_computes(folder: Path, environment: None, tmp_path: Path) -> None:
    body = {"query": "What is the capital?", "documents": DOCUMENTS, "instruct": "Find it"}
    expected = shares(folder)
    converted = f"{LIMITS.replace(DECODE_SIZES, '')} --is-embedding --hf-overrides {shlex.quote(json.dumps(CONVERTED))}"
    for name, flags in (("causal", LIMITS), ("converted", converted)):
        with running(folder, flags, tmp_path / name) as server:
            answer: dict[str, Any] = server.http.post("/v1/rerank", json=body).raise_for_status().json()
            scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
            assert [one["index"] for one in answer["results"]] == np.argsort(np.negative(expected)).tolist()
            assert [scores[index] for index in range(3)] == pytest.approx(expected, abs=1e-4)
