"""A panic in a library that is written in Rust ends one request, with an error that clients can read."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.http.routes import routes_tokenize
from palladio.http.wire import protocol
from palladio.runtime.interface.errors import GenerationError
from palladio.runtime.interface.native_panics import PanicGuard, is_panic
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import both, chat_line, jsonl, submit, wait_for

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})  # as each library makes one
HARD = "xyz" * 28 + "b"  # for a pattern that tries each way to divide it; the start does not try such a run
REASON = "the model's tokenizer failed on this input: Onig"


@pytest.fixture(scope="module")
def panicking(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One whose regular expression gives up on HARD."""
    folder = tmp_path_factory.mktemp("panicking")
    tokenizer.save(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "((xyz)+)+$"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer.load(Path(folder))


def test_a_tokenizer_that_panics_gives_an_error_of_the_form_of_each_api(
    http: httpx.Client, engine: FakeEngine, panicking: Tokenizer
) -> None:
    engine.tokenizer = panicking
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": HARD})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
    assert answer.json()["error"]["message"].startswith(REASON)
    assert http.post("/v1/completions", json={"model": MODEL, "prompt": "b"}).status_code == 200


def raising(*_: object, **__: object) -> Any:
    raise PanicException("it gave up")


def test_a_panic_that_nothing_else_has_caught(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes_tokenize, "token_lists", raising)
    with caplog.at_level(logging.ERROR):
        answer = http.post("/detokenize", json={"tokens": [1]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "it gave up" in caplog.text


def test_a_panic_of_what_reads_requests(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol.WireModel, "model_validate", raising)
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")


def test_a_panic_ends_a_line_and_not_its_batch(client: openai.OpenAI, engine: FakeEngine, panicking: Tokenizer) -> None:
    engine.tokenizer = panicking
    url = "/v1/completions"
    lines = [chat_line(number, url, messages=None, prompt=text) for number, text in enumerate((HARD, "b"))]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint=url).id)
    good, bad = both(client, batch)
    assert [line["custom_id"] for line in good] == ["line-1"]
    assert bad[0]["response"]["body"]["error"]["message"].startswith(REASON)


def test_other_exceptions_pass_a_guard() -> None:
    guard = PanicGuard("a library")
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="other"), guard:
        raise ValueError("other")
    with pytest.raises(GenerationError, match="a library failed on this input: it gave up") as caught, guard:
        raising()
    assert is_panic(caught.value.__cause__)
    assert not is_panic(caught.value)
