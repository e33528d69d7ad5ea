"""Prompts that are too long: truncate_prompt_tokens, and --allow-auto-truncate."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.prompts.text_encoding import LONG_TEXT, TextEncoder, Truncation
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve
from tests.tiny_tokenizer import build_tiny_tokenizer

CONTEXT = 2048  # of the fake engine
LONG = list(range(3, 3 + 300)) * 8  # 2400 tokens
CHAT = [{"role": "user", "content": "Paris Berlin " * 1200}]


def post(url: str, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(url + path, json=body, timeout=20)
    return answer.raise_for_status().json() if answer.status_code == 200 else answer.json()["error"]


def test_cutting() -> None:
    ids = list(range(10))
    room = LengthLimit(8, "the context")
    last = Truncation.of(room, 4, 5, is_automatic=True)
    assert last is not None
    assert (last.cut(ids), last.cut(ids, 1, 2), last.cut(ids[:4])) == ([6, 7, 8, 9], [0, 7, 8, 9], [0, 1, 2, 3])
    assert last.cut(ids, 3, 3) == [6, 7, 8, 9]  # no room for the text
    first = Truncation.of(room, None, 5, is_automatic=True)
    assert first is not None
    assert (first.cut(ids), first.cut(ids, 1, 2)) == (ids[:7], [0, 1, 2, 3, 4, 8, 9])
    limits = [(-1, 5, 3), (-1, 0, 8), (-1, None, 7), (-1, 99, 1), (8, 5, 8)]
    for asked, reserved, limit in limits:
        assert Truncation.of(room, asked, reserved, is_automatic=False) == Truncation(limit, keeps_end=True)
    assert Truncation.of(room, None, 0, is_automatic=True) == Truncation(8, keeps_end=False)
    assert Truncation.of(room, None, 0, is_automatic=False) is None
    for asked in (0, -2, 9):
        with pytest.raises(InvalidRequestError, match=r"truncate_prompt_tokens must be -1.* 1 … 8 \(the context"):
            Truncation.of(room, asked, 0, is_automatic=False)


def test_special_tokens_around_a_text_stay(tmp_path: Path) -> None:
    encoder = TextEncoder(FakeEngine(Tokenizer.load(build_tiny_tokenizer(tmp_path, add_bos=True))), bounded=True)
    text = "Paris Berlin " * LONG_TEXT  # too long to be looked at, were it not cut
    whole = encoder.tokenizer.encode(text)
    assert encoder.encode(text, truncation=Truncation(9, keeps_end=True)) == [whole[0], *whole[-8:]]
    assert encoder.encode(text, truncation=Truncation(9, keeps_end=False)) == whole[:9]
    assert encoder.encode(text, add_special_tokens=False, truncation=Truncation(9, keeps_end=True)) == whole[-9:]


def test_completions_keep_the_last_tokens(serve: Serve, engine: FakeEngine) -> None:
    url = serve()
    assert post(url, "/v1/completions", prompt=LONG)["code"] == "context_length_exceeded"
    for asked, others, kept in ((7, {}, 7), (-1, {}, CONTEXT - 16), (-1, {"max_tokens": 100}, CONTEXT - 100)):
        answer = post(url, "/v1/completions", prompt=[LONG, [5]], truncate_prompt_tokens=asked, **others)
        assert answer["usage"]["prompt_tokens"] == kept + 1
        assert [call.prompt_ids for call in engine.calls[-2:]] == [LONG[-kept:], [5]]
    error = post(url, "/v1/completions", prompt=LONG, truncate_prompt_tokens=CONTEXT + 1)
    assert (error["param"], error["code"]) == ("truncate_prompt_tokens", None)


def test_echo_shows_what_was_kept(serve: Serve, tokenizer: Tokenizer) -> None:
    url, text = serve(), "The capital of France is Paris."
    last = tokenizer.decode(tokenizer.encode(text)[-3:])
    for asked, shown in ((3, last), (500, text)):
        body: dict[str, Any] = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1}
        (choice,) = post(url, "/v1/completions", truncate_prompt_tokens=asked, **body)["choices"]
        assert choice["text"].startswith(shown)
        assert choice["text"].removeprefix(shown) in "Hello"


def test_chat_keeps_the_end_of_the_conversation(serve: Serve, engine: FakeEngine) -> None:
    url = serve()
    assert post(url, "/v1/chat/completions", messages=CHAT)["param"] == "messages"
    for asked, others, kept in ((50, {}, 50), (-1, {}, CONTEXT - 1), (-1, {"max_completion_tokens": 9}, CONTEXT - 9)):
        post(url, "/v1/chat/completions", messages=CHAT, truncate_prompt_tokens=asked, **others)
        (ids,) = [engine.calls[-1].prompt_ids]
        assert engine.tokenizer is not None
        assert len(ids) == kept
        assert engine.tokenizer.decode(ids, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    preferring = serve(preferred_sampling_params='{"max_tokens": 512}')
    for others, kept in (({}, CONTEXT - 512), ({"max_tokens": 9}, CONTEXT - 9)):
        post(preferring, "/v1/chat/completions", messages=CHAT, truncate_prompt_tokens=-1, **others)
        assert (len(engine.calls[-1].prompt_ids), engine.calls[-1].params.max_tokens) == (kept, CONTEXT - kept)
    error = post(url, "/v1/chat/completions", messages=CHAT, truncate_prompt_tokens="9")
    assert error["param"] == "truncate_prompt_tokens"


def test_embeddings(serve: Serve, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(4, "last", normalized=True)
    plain, automatic = serve(), serve(allow_auto_truncate=True)
    assert post(plain, "/v1/embeddings", input=LONG)["param"] == "input"
    assert post(plain, "/v1/embeddings", input=LONG, truncate_prompt_tokens=9)["usage"]["prompt_tokens"] == 9
    assert engine.calls[-1].prompt_ids == LONG[-9:]
    assert post(automatic, "/v1/embeddings", input=LONG, truncate_prompt_tokens=9)["usage"]["prompt_tokens"] == 9
    assert engine.calls[-1].prompt_ids == LONG[-9:]
    for path, field in (("/v1/embeddings", "input"), ("/encode", "input_ids")):
        assert "error" not in post(automatic, path, **{field: LONG})
        assert engine.calls[-1].prompt_ids == LONG[:CONTEXT]


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/completions", {"prompt": LONG, "max_tokens": 50}, 50),
        ("/generate", {"input_ids": LONG, "sampling_params": {"max_new_tokens": 50}}, 50),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 50}, 50),
        ("/v1/responses", {"input": CHAT[0]["content"], "max_output_tokens": 50}, 50),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 50}, 50),
    ],
)
def test_automatically_the_first_tokens_stay(
    serve: Serve, engine: FakeEngine, path: str, body: dict[str, Any], asked: int
) -> None:
    assert httpx.post(serve() + path, json=body, timeout=20).status_code == 400
    httpx.post(serve(allow_auto_truncate=True) + path, json=body, timeout=20).raise_for_status()
    call = engine.calls[-1]
    assert (len(call.prompt_ids), call.params.max_tokens) == (CONTEXT - 1, 1)
    if LONG in body.values():
        assert call.prompt_ids == LONG[: CONTEXT - 1]


def test_automatically_max_tokens_is_lowered(serve: Serve, engine: FakeEngine) -> None:
    url = serve(allow_auto_truncate=True)
    for prompts in ([LONG[:2000]], [LONG[:2000], LONG[:1990]]):
        post(url, "/v1/completions", prompt=prompts, max_tokens=100)
        lowered = {len(call.prompt_ids): call.params.max_tokens for call in engine.calls[-len(prompts) :]}
        assert lowered == {len(prompt): CONTEXT - len(prompt) for prompt in prompts}
    room, kept = LengthLimit(10, ""), SamplingParams(max_tokens=3)
    fitted = [room.fit(GenerationRequest("r", [5] * size, kept, lowers_length=True)) for size in (7, 10, 8)]
    assert fitted[0] is fitted[1] is kept  # the engine says that there is no room
    assert fitted[2].max_tokens == 2


@pytest.mark.parametrize("automatic", [False, True])
def test_what_is_counted_stays_whole(serve: Serve, automatic: bool) -> None:
    url, text = serve(allow_auto_truncate=automatic), CHAT[0]["content"] * 20
    chat = [{"role": "user", "content": text}]
    whole = post(url, "/tokenize", messages=chat, add_generation_prompt=True)["count"]
    assert len(text) > LONG_TEXT
    assert whole > CONTEXT
    assert post(url, "/v1/messages/count_tokens", messages=chat) == {"input_tokens": whole}
    assert post(url, "/v1/responses/input_tokens", input=text)["input_tokens"] == whole
