"""A real server with --is-embedding, whose tokenizer ends every text with a token of its own, as Qwen3-Embedding's."""

import concurrent.futures
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer, processors

from tests.integration.serving import (
    BODIES,
    DECODE_SIZES,
    LIMITS,
    MODEL,
    Server,
    build_checkpoint,
    error_of,
    launch_command,
)

END = "<|endoftext|>"
TEXTS = ["The capital of France is Paris.", "x", "Hello, my name is Palladio. " * 9, "x"]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_checkpoint(tmp_path_factory.mktemp("embedding"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def running(folder: Path, environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = LIMITS.replace(DECODE_SIZES, "").replace("--compile full", "--compile lazy")
    flags = f"{limits} --served-model-name {MODEL} --is-embedding"
    server = Server(launch_command(folder, flags), tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.check_clean()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def ids_of(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert ids[-1] == 0  # END
    return ids


def vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return np.array([item.embedding for item in answer.data], np.float32)


@needs_torch
@pytest.mark.torch
@pytest.mark.slow  # test_embedding_engine.py compares with transformers
def test_what_transformers_computes(client: openai.OpenAI, folder: Path) -> None:
    import torch
    from transformers import AutoModel

    torch.set_num_threads(1)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        hidden = [model(torch.tensor([ids_of(folder, text)])).last_hidden_state[0, -1].numpy() for text in TEXTS]
    expected = np.stack([vector / np.linalg.norm(vector) for vector in hidden])
    np.testing.assert_allclose(vectors(client.embeddings.create(model=MODEL, input=TEXTS)), expected, atol=1e-5)


def test_formats_and_counts(client: openai.OpenAI, folder: Path) -> None:
    ids = [ids_of(folder, text) for text in TEXTS]
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    whole = vectors(answer)
    assert whole.shape == (4, 48)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-6)
    assert np.abs(whole[0] - whole[1]).max() > 0.01
    for other in (
        client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float"),
        client.embeddings.create(model=MODEL, input=ids),
    ):
        np.testing.assert_allclose(vectors(other), whole, atol=1e-6)
    short = vectors(client.embeddings.create(model=MODEL, input=TEXTS, dimensions=7))
    np.testing.assert_allclose(short, whole[:, :7] / np.linalg.norm(whole[:, :7], axis=1, keepdims=True), atol=1e-6)


def test_many_clients_at_once(client: openai.OpenAI) -> None:
    """More texts than the engine runs at a time, from several connections: each gets its own."""
    texts = [f"number {number} " * (1 + number % 7) for number in range(60)]
    alone = vectors(client.embeddings.create(model=MODEL, input=texts))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = pool.map(lambda text: client.embeddings.create(model=MODEL, input=text), texts)
        np.testing.assert_allclose(np.concatenate([vectors(answer) for answer in together]), alone, atol=1e-5)


def test_encode(server: Server, client: openai.OpenAI) -> None:
    expected = vectors(client.embeddings.create(model=MODEL, input=TEXTS))
    answer = server.post("/encode", {"text": TEXTS}).raise_for_status().json()
    np.testing.assert_allclose([item["embedding"] for item in answer], expected, atol=1e-6)
    assert answer[0]["meta_info"]["e2e_latency"] > 0


@pytest.mark.parametrize("path", BODIES)
def test_no_text_is_generated(server: Server, path: str) -> None:
    assert "--is-embedding" in (error_of(server.post(path, BODIES[path]))["message"] or "")


def test_what_the_server_says(server: Server) -> None:
    assert server.http.get("/get_model_info").json()["is_generation"] is False
    assert server.http.get("/health_generate").status_code == 200
    info = server.http.get("/get_server_info").json()
    embedding = {"size": 48, "pooling": "last", "normalized": True, "classes": None, "kinds": ["dense"]}
    assert (info["is_embedding"], info["embedding"] | embedding) == (True, info["embedding"])
    assert "palladio" in server.http.get("/metrics").text


def test_a_text_that_is_too_long(server: Server) -> None:
    error = error_of(server.post("/v1/embeddings", {"input": ["fine", "x" * 2000]}))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
