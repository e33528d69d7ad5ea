"""Texts that are only counted, ids that are turned into text, and prompts that are cut: what each may cost."""

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from palladio.http.generation.prompts import token_lists
from palladio.http.prompts.text_encoding import COUNTED_BASE, COUNTED_PER_TOKEN, CUT_MARGIN, TextEncoder, Truncation
from palladio.http.routes.routes_tokenize import DETOKENIZE_CONTEXTS
from palladio.runtime.text.tokenizers.tokenizer import MANY, Tokenizer
from tests.fake_engine import FakeEngine

MAX_LEN = 2048  # the fake engine's
MAX_COUNTED = COUNTED_BASE + COUNTED_PER_TOKEN * MAX_LEN
LONG = "hello wörld " * (MAX_COUNTED // 12 + 1)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/tokenize", {"prompt": LONG}),
        ("/tokenize", {"prompt": ["a", LONG]}),
        ("/tokenize", {"prompt": [LONG[: MAX_COUNTED // 2]] * 3}),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses/input_tokens", {"input": LONG}),
    ],
)
def test_what_is_too_long_to_be_counted(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, route: str, fields: dict[str, Any]
) -> None:
    lengths: list[int] = []
    encode = Tokenizer.encode

    def noting(self: Tokenizer, text: str, *args: Any, **kwargs: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode", noting)
    answer = http.post(route, json=fields)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert f"at most {MAX_COUNTED} characters" in message
    assert "in parts" in message
    assert max(lengths, default=0) < 1000, "it was tokenized all the same"


def test_several_contexts_of_text_are_counted(http: httpx.Client) -> None:
    text = LONG[: MAX_COUNTED // 2]
    answer = http.post("/tokenize", json={"prompt": text})
    assert answer.status_code == 200
    assert answer.json()["count"] == len(answer.json()["tokens"]) > 4 * MAX_LEN


@pytest.mark.parametrize("tokens", [[5] * (DETOKENIZE_CONTEXTS * MAX_LEN + 1), [[5] * 5000] * 4])
def test_too_many_ids_at_a_time(http: httpx.Client, tokens: list[Any]) -> None:
    error = http.post("/detokenize", json={"tokens": tokens}).json()["error"]
    assert error["param"] == "tokens"
    assert f"tokens takes at most {DETOKENIZE_CONTEXTS * MAX_LEN} ids" in error["message"]


def test_too_many_lists_of_ids(http: httpx.Client) -> None:
    answer = http.post("/detokenize", json={"tokens": [[5]] * 5000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


@pytest.mark.parametrize(("count", "is_beside"), [(10, False), (5000, True)])
def test_many_ids_are_turned_into_text_beside_the_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, count: int, is_beside: bool
) -> None:
    threads: list[int] = []
    decode = Tokenizer.decode

    def noting(self: Tokenizer, *args: Any, **kwargs: Any) -> str:
        threads.append(threading.get_ident())
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "decode", noting)
    assert http.post("/detokenize", json={"tokens": [70]}).status_code == 200
    loop = threads.pop()
    answer = http.post("/detokenize", json={"tokens": [70] * count})
    assert (len(answer.json()["text"]), answer.json()["prompt"]) == (count, answer.json()["text"])
    assert (threads.pop() != loop) == is_beside


def test_one_list_or_several() -> None:
    assert token_lists([1, 2]) == [[1, 2]]
    assert token_lists([[1], [2, 3]]) == [[1], [2, 3]]
    assert token_lists([]) == [[]]


@pytest.mark.parametrize(
    "text", [LONG[:20_000], "a\n\n  b " * 3000, "漢字 🎉 " * 3000], ids=["words", "spaces", "wide"]
)
def test_long_texts_have_the_tokens_of_short_ones(tokenizer: Tokenizer, text: str) -> None:
    """They go through other calls of the library, which let other threads run."""
    assert len(text) > MANY
    ids = tokenizer.encode(text)
    assert ids == tokenizer._fast.encode(text).ids
    assert tokenizer.decode(ids) == tokenizer._hf.decode(ids, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(ids) == text


def test_other_threads_run_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """A loop in this thread makes many turns meanwhile; the calls for short texts would let it make one or two."""
    text, done, turns = "hello world " * 60_000, threading.Event(), 0
    begun = threading.Event()

    def work() -> None:
        begun.set()
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 20


@pytest.mark.parametrize("keeps_end", [True, False])
def test_of_a_text_that_is_cut_only_what_may_stay_is_tokenized(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, keeps_end: bool
) -> None:
    encoder = TextEncoder(FakeEngine(tokenizer), bounded=True)
    text = "".join(f"number {i}, " for i in range(30_000))
    truncation = Truncation(7, keeps_end=keeps_end)
    expected = truncation.cut(tokenizer.encode(text))
    lengths: list[int] = []
    encode = Tokenizer.encode

    def noting(self: Tokenizer, text: str, *args: Any, **kwargs: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode", noting)
    assert encoder.encode(text, True, truncation) == expected
    assert max(lengths) < CUT_MARGIN + 5000 < len(text)


def test_a_long_text_cut_over_http(serve: Callable[..., str], engine: FakeEngine) -> None:
    with httpx.Client(base_url=serve(), timeout=20) as client:
        body = {"prompt": "x " * 150_000 + "the end", "truncate_prompt_tokens": 5, "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
    assert engine.tokenizer is not None
    assert engine.calls[-1].prompt_ids == engine.tokenizer.encode(str(body["prompt"]))[-5:]
