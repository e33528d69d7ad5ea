"""What requests make the server do grows as they do: counted, for sizes that double."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from palladio.http.anthropic import routes_messages
from palladio.http.generation.output_stream import MAX_IDS, MAX_PATTERNS, check_samples, stop_patterns
from palladio.http.generation.prompts import MAX_PAIRED, MAX_SAMPLES
from palladio.http.ollama.ollama_chat import OllamaChat
from palladio.http.ollama.protocol_ollama import OllamaChatRequest
from palladio.http.responses import response_run
from palladio.http.routes import routes_completions, routes_scores
from palladio.http.routes.routes_scores import MAX_SCORES
from palladio.http.wire import body as body_module
from palladio.http.wire import protocol
from palladio.http.wire.body import LARGE_BODY
from palladio.http.wire.fields import NONE_PASS, WarningList
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.runtime.front.requests import request_table, token_scores
from palladio.runtime.front.requests.intake import RequestIntake
from palladio.runtime.front.requests.request_table import RequestTable
from palladio.runtime.front.requests.sglang_requests import expand_requests
from palladio.runtime.front.requests.sglang_results import Results
from palladio.runtime.front.requests.token_scores import next_token_scores
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import TokenLogprob
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from palladio.runtime.interface.request.foreign_fields import check_field
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers import tokenizer as tokenizer_module
from palladio.runtime.text.tokenizers.stop_regex import StopPattern, read_pattern
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.counted_calls import counted_calls
from tests.fake_engine import MODEL, FakeEngine
from tests.http.test_event_loop import USER, thread_of

LONG = "x" * 10_000


def output(labels: int) -> RequestOutput:
    asked = tuple((number, -float(number)) for number in range(labels))
    return RequestOutput("a", 0, "", [1], [TokenLogprob(1, -1.0, (), asked)], None, None, 1, 1)


def conversation(count: int) -> OllamaChatRequest:
    """Calls of one tool, results of another, and then results of the first."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}] * count}
    results = [{"role": "tool", "tool_name": name, "content": "x"} for name in "ba" for _ in range(count)]
    return OllamaChatRequest(model=MODEL, messages=[{"role": "user", "content": "x"}, call, *results])


@pytest.mark.parametrize(
    "work",
    [
        lambda size: OllamaChat(conversation(size), MODEL, WarningList(NONE_PASS)),
        lambda size: next_token_scores([output(size)], 1, range(size), apply_softmax=True),
        lambda size: next_token_scores([output(10)], 1, [1] * size, apply_softmax=False),
    ],
)
def test_twice_the_size_is_twice_the_work(work: Callable[[int], object]) -> None:
    assert counted_calls(lambda: work(400)) < 2.2 * counted_calls(lambda: work(200)) + 100


def test_results_of_tools_belong_to_the_calls_of_their_names() -> None:
    messages = OllamaChat(conversation(2), MODEL, WarningList(NONE_PASS)).chat.messages
    assert [message.get("tool_call_id") for message in messages[2:]] == [None, None, "call_1_0", "call_1_1"]


def test_weights_are_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []

    def counting(weights: list[float]) -> float:
        added.append(len(weights))
        return math.fsum(weights)

    monkeypatch.setattr(token_scores, "sum", counting, raising=False)
    scores = next_token_scores([output(50)], 1, range(50), apply_softmax=True)
    assert (added, math.fsum(scores[0])) == ([50], pytest.approx(1))


def test_each_sample_takes_what_its_request_has_without_looking_at_it(engine: FakeEngine) -> None:
    intake = RequestIntake(engine.info, engine.tokenizer)

    def resolve(num_entries: int) -> int:
        ids = range(num_entries)
        bias = dict.fromkeys(ids, 1.0)
        params = SamplingParams(max_tokens=4, n=128, logit_bias=bias, allowed_token_ids=tuple(ids), stop=("a", "b"))
        request = GenerationRequest("a", [1], params)
        return counted_calls(lambda: intake.resolve(request))

    assert resolve(200) < resolve(1) + 1000


def test_a_special_token_is_found_by_its_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> int:
        return counted_calls(lambda: tokenizer.special_id("no such token"))

    few = find()
    more = {**tokenizer._added, **{100_000 + number: f"<|{number}|>" for number in range(1000)}}
    monkeypatch.setattr(tokenizer, "_added", more)
    monkeypatch.setattr(tokenizer, "_special", frozenset(more))
    assert find() == few


def test_parameters_of_all_prompts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = SamplingParams.from_dict

    def counting(values: Any, **kwargs: Any) -> SamplingParams:
        read.append(1)
        return original(values, **kwargs)

    monkeypatch.setattr(SamplingParams, "from_dict", counting)
    given = {"input_ids": [[1]] * 50, "rid": None, "options": {}, "received": time.time()}
    expand_requests(sampling_params={"max_new_tokens": 1}, **given)
    assert len(read) == 1
    made, _, _ = expand_requests(sampling_params=[{"max_new_tokens": 1 + number} for number in range(50)], **given)
    assert [request.params.max_tokens for request in made] == list(range(1, 51))


def test_an_unknown_field_of_many_entries_is_looked_up_once(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def counting(name: str, *args: Any) -> Any:
        checked.append(name)
        return check_field(name, *args)

    monkeypatch.setattr(protocol, "check_field", counting)
    entries = [{"max_new_tokens": 1, "unknown_one": number} for number in range(50)]
    answer = http.post("/generate", json={"input_ids": [[5]] * 50, "sampling_params": entries})
    assert [warning["param"] for warning in answer.json()[0]["warnings"]] == ["sampling_params.unknown_one"]
    assert checked == ["unknown_one"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/score",
            {"query": "a" * (MAX_PAIRED // 1000), "items": ["a"] * 1000, "label_token_ids": [1]},
            "over the limit of 33554432",
        ),
        (
            "/v1/score",
            {"query": "a", "items": ["a"] * 100, "label_token_ids": [1] * (MAX_SCORES // 100 + 1)},
            "ask for 524300 scores, over the limit of 524288",
        ),
        ("/v1/rerank", {"query": "a" * (MAX_PAIRED // 1000), "documents": ["a"] * 1000}, "over the limit of 33554432"),
        (
            "/v1/completions",
            {"prompt": "a", "stop": ["a" * 100_000] * 64},
            "stop takes strings of at most 4096 characters, got one of 100000",
        ),
        ("/v1/messages", {"stop_sequences": ["a" * 1000] * 20}, "stop_sequences takes strings of at most 16384"),
        ("/api/chat", {"options": {"stop": ["a" * 1000] * 20}}, "options.stop takes strings of at most 16384"),
        ("/generate", {"text": "a", "sampling_params": {"stop": ["a" * 1000] * 20}}, "stop takes strings of at most"),
        ("/v1/responses", {"input": "a", "stop": ["a" * 1000] * 20}, "stop takes strings of at most 16384"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"enum": [LONG] * 110}}, "over the limit of 1048576"),
        ("/v1/completions", {"prompt": "a", "guided_choice": [LONG] * 110}, "over the limit of 1048576"),
    ],
)
def test_what_would_be_multiplied_is_refused(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any], message: str
) -> None:
    if path == "/v1/rerank":
        engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1} if path == "/v1/messages" else {}
    chat |= {"messages": [{"role": "user", "content": "a"}]} if path == "/api/chat" else {}
    answer = http.post(path, json={"model": MODEL, **chat, **body})
    assert (answer.status_code, message in answer.text) == (400, True), answer.text


def test_ids_of_all_samples_together() -> None:
    prompt = [1] * (MAX_IDS // 128)
    check_samples([GenerationRequest("a", prompt, SamplingParams(n=128))])
    with pytest.raises(InvalidRequestError, match=f"over the limit of {MAX_IDS}: lower n"):
        check_samples([GenerationRequest("a", [*prompt, 1], SamplingParams(n=128))])
    allowed = SamplingParams(allowed_token_ids=tuple(range(1 << 14)))
    with pytest.raises(InvalidRequestError, match=f"over the limit of {MAX_IDS}"):
        check_samples([GenerationRequest("a", [1], allowed)] * MAX_SAMPLES)


def test_others_have_their_turn_while_an_engine_is_told_of_samples(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that were aborted meanwhile are left out."""
    monkeypatch.setattr(request_table, "MAX_SENT", 2 * request_table.SAMPLE_SIZE)
    samples = [GenerationRequest(f"e{number}", [1], SamplingParams(max_tokens=1)) for number in range(10)]
    sent: list[str] = []

    async def main() -> None:
        table = RequestTable(None)
        table.open("a", samples, tokenizer)
        sending = asyncio.create_task(table.send(samples, lambda sample: sent.append(sample.request_id), lambda: True))
        await asyncio.sleep(0)
        assert len(sent) == 2
        table.abort("a")
        await sending

    asyncio.run(main())
    assert sent == ["e0", "e1"]


@pytest.mark.parametrize(
    ("path", "place", "name", "small", "large"),
    [
        (
            "/v1/completions",
            routes_completions,
            "_answer",
            {"prompt": "a", "max_tokens": 4},
            {"prompt": [[5] * 1000] * 4, "max_tokens": 1, "echo": True, "logprobs": 5},
        ),
        (
            "/generate",
            Results,
            "to_dicts",
            {"text": "a"},
            {"input_ids": [[5] * 1000] * 4, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5},
        ),
        (
            "/v1/score",
            routes_scores,
            "next_token_scores",
            {"query": "a", "items": ["a"], "label_token_ids": [1]},
            {"query": "a", "items": ["a"] * 20, "label_token_ids": [1] * 100},
        ),
    ],
)
def test_large_answers_are_written_beside_the_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, place: Any, name: str, small: dict, large: dict
) -> None:
    one, many = (
        thread_of(place, name, monkeypatch, lambda body=body: http.post(path, json=body)) for body in (small, large)
    )
    assert one != many


@pytest.mark.parametrize(("place", "name"), [(body_module, "_decode"), (CompletionRequest, "parse")])
def test_large_bodies_are_read_beside_the_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    one, many = (
        thread_of(
            place,
            name,
            monkeypatch,
            lambda size=size: http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "user": "x" * size}),
        )
        for size in (1, LARGE_BODY)
    )
    assert one != many


@pytest.mark.parametrize(
    ("path", "place", "tool"),
    [
        ("/v1/responses", response_run, {"type": "web_search"}),
        ("/v1/messages", routes_messages, {"name": "f", "input_schema": {}}),
    ],
)
def test_many_tools_are_read_beside_the_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, place: Any, tool: dict[str, Any]
) -> None:
    name = "ResponseChat" if path == "/v1/responses" else "AnthropicChat"
    threads: list[int] = []
    original = getattr(place, name)

    def noting(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return original(*args)

    monkeypatch.setattr(place, name, noting)
    for count in (1, 200):
        fields: dict[str, Any] = {"input": "a"} if path == "/v1/responses" else {"messages": USER, "max_tokens": 1}
        http.post(path, json={"model": MODEL, "tools": [tool] * count, **fields})
    assert len(set(threads)) == 2


def test_long_documents_are_cut_beside_the_loop(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))

    def rerank(documents: list[str]) -> httpx.Response:
        return http.post("/v1/rerank", json={"query": "a", "documents": documents, "max_tokens_per_doc": 4})

    short, long = (
        thread_of(tokenizer_module.Tokenizer, "decode", monkeypatch, lambda texts=texts: rerank(texts))
        for texts in (["a longer one than four tokens"], [LONG] * 4)
    )
    assert short != long


def test_stop_strings_of_all_prompts_together() -> None:
    def asked(*stops: str) -> list[GenerationRequest]:
        return [GenerationRequest("a", [1], SamplingParams(stop=(stop,) * 2)) for stop in stops]

    check_samples(asked(*["a" * 4096] * 100))
    with pytest.raises(InvalidRequestError, match="stop takes strings of at most 16384 characters together, got 24576"):
        check_samples(asked(*[f"{number}" * 4096 for number in range(3)]))


def test_patterns_of_all_prompts_together() -> None:
    patterns = [f"a{number}" for number in range(MAX_PATTERNS + 1)]
    requests = [GenerationRequest("a", [1], SamplingParams(stop_regex=(pattern,))) for pattern in patterns]
    assert len(stop_patterns([*requests[1:], *requests[1:]])) == MAX_PATTERNS
    with pytest.raises(InvalidRequestError, match="stop_regex takes at most 16 different patterns of all prompts"):
        stop_patterns(requests)


def test_patterns_are_read_beside_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = []

    def read(text: str) -> StopPattern:
        loops.append(asyncio._get_running_loop())
        return read_pattern(text)

    monkeypatch.setattr("palladio.http.generation.output_stream.read_pattern", read)
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "stop_regex": ["[abc]{9}" * 20, "[abd]{9}" * 20]}
    assert http.post("/v1/completions", json=body).status_code == 200
    assert loops == [None, None]
