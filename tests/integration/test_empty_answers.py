"""Models that end their output inside a thought, with a real engine: the thought is closed, and an answer follows.

The model thinks `THOUGHT` and ends; after the mark that closes a thought it says `ANSWER` and ends.
"""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests import compile_cache
from tests.scripted_model import build_scripted_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

THOUGHT, ANSWER, EOS = "Okay", "Paris!", 2
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{{- '<|im_start|>assistant\n<think>\n' }}"
)
PROMPT = "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n<think>\n"
FLAGS: dict[str, Any] = {
    "max_running_requests": 4,
    "cuda_graph_bs": (1,),
    "max_total_tokens": 1024,
    "context_length": 256,
    "chunked_prefill_size": 64,
    "page_size": 8,
    "compile": "lazy",
    "watchdog_timeout": 0.0,
}
WARM = 12.0  # the temperature at which a token in ten does not follow the script


@dataclasses.dataclass(frozen=True)
class Served:
    """One server in this process, whose event loop runs in a thread."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient

    def post(self, path: str, **body: Any) -> httpx.Response:
        sent = asyncio.run_coroutine_threadsafe(self.client.post(path, json=body), self.loop)
        return sent.result(60).raise_for_status()

    def chat(self, **fields: Any) -> dict[str, Any]:
        fields = {"messages": [{"role": "user", "content": "Where?"}], "temperature": 0, "max_tokens": 60} | fields
        answer = self.post("/v1/chat/completions", **fields)
        return followed(answer.text) if fields.get("stream") else answer.json()

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        lines = self.post(path, stream=True, **body).text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def followed(text: str) -> dict[str, Any]:
    """What the chunks of a chat's stream add up to."""
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"usage": None}
    for line in (line[6:] for line in text.splitlines() if line.startswith("data: {")):
        chunk = json.loads(line)
        whole["usage"] = chunk.get("usage") or whole["usage"]
        for choice in chunk["choices"]:
            new = {"message": {"content": "", "reasoning_content": ""}}
            known = choices.setdefault(choice["index"], new)
            for name in ("content", "reasoning_content"):
                known["message"][name] += choice["delta"].get(name) or ""
            known |= {name: value for name, value in choice.items() if name not in ("delta", "logprobs")}
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def told(choice: dict[str, Any]) -> tuple[str, str, str, str | None]:
    """Reasoning, content, why it ended, and what closed its thought."""
    message, closed = choice["message"], choice.get("meta_info", {}).get("thought_closed_by")
    return message["reasoning_content"] or "", message["content"] or "", choice["finish_reason"], closed


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Servers on one engine."""
    folder = tmp_path_factory.mktemp("ends-in-thought")
    tokenizer = Tokenizer.load(build_tiny_tokenizer(folder / "tokenizer"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, False)

    scripts = [*ids("\n"), *ids(THOUGHT), EOS], [*ids("</think>"), *ids(ANSWER), EOS]
    model = build_scripted_checkpoint(folder / "model", scripts)
    template = folder / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    cache = str(compile_cache.folder() / "xla")
    config = EngineConfig.from_flags({"model_path": str(model), "compilation_cache_dir": cache, **FLAGS})
    engine, loop, served = AsyncEngine(config, ThreadTransport()), asyncio.new_event_loop(), []

    def make(**flags: Any) -> Served:
        settings = HttpConfig(chat_template=str(template), reasoning_parser="qwen3", **flags)
        storage = Storage.temporary()
        app = create_app(engine, settings, storage=storage)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60)
        served.append((client, storage))
        return Served(loop, client)

    async def begin() -> None:
        await engine.start()
        await engine.wait_ready()

    async def end() -> None:
        for client, storage in served:
            await client.aclose()
            storage.close()
        await engine.shutdown()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(begin(), loop).result(200)
        yield make
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def served(start: Callable[..., Served]) -> Served:
    return start()


@pytest.fixture(scope="module")
def as_is(start: Callable[..., Served]) -> Served:
    return start(empty_answer="as_is")


@pytest.mark.parametrize("stream", [False, True])
def test_an_end_inside_a_thought_closes_it(served: Served, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = served.chat(stream=stream, **options)
    assert told(answer["choices"][0]) == (THOUGHT, ANSWER, "stop", "eos")
    details = answer["usage"]["completion_tokens_details"]
    assert details["closed_thoughts"] == 1
    plain = served.chat(thinking_token_budget=0)
    assert told(plain["choices"][0]) == ("", ANSWER, "stop", None)
    assert "closed_thoughts" not in plain["usage"]["completion_tokens_details"]
    answered = plain["usage"]["completion_tokens"] - 1  # but for the mark
    assert answer["usage"]["completion_tokens"] == details["reasoning_tokens"] + answered


@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_closes_it_too(served: Served, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = served.chat(stream=stream, thinking_token_budget=1, **options)
    thought, content, finish, closed = told(answer["choices"][0])
    assert (content, finish, closed) == (ANSWER, "stop", "budget")
    assert thought
    assert THOUGHT.startswith(thought)
    assert thought != THOUGHT
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2, "closed_thoughts": 1}


def test_as_is_the_output_ends_there(as_is: Served) -> None:
    answer = as_is.chat()
    assert told(answer["choices"][0]) == (THOUGHT, "", "stop", None)
    assert answer["choices"][0]["message"]["content"] is None
    assert answer["choices"][0]["matched_stop"] == EOS
    assert list(answer["usage"]["completion_tokens_details"]) == ["reasoning_tokens"]
    budget = as_is.chat(thinking_token_budget=1)
    assert told(budget["choices"][0])[1:] == (ANSWER, "stop", None), "a budget is the request's own"
    assert list(budget["usage"]["completion_tokens_details"]) == ["reasoning_tokens"]


def test_a_grammar_follows(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        answer = served.chat(response_format=form, stream=stream)
        thought, content, finish, closed = told(answer["choices"][0])
        assert (thought, json.loads(content), finish, closed) == (THOUGHT, {"a": 1}, "stop", "eos")


def test_samples_are_the_same_in_a_stream(served: Served) -> None:
    """Each sample is closed or not by itself; the usage counts those that were."""
    closed = []
    for seed in range(3):
        fields = {"n": 2, "seed": seed, "temperature": WARM, "max_tokens": 40}
        whole = served.chat(**fields)
        stream = served.chat(**fields, stream=True, stream_options={"include_usage": True})
        samples = [told(choice) for choice in whole["choices"]]
        assert [told(choice) for choice in stream["choices"]] == samples
        assert stream["usage"] == whole["usage"]
        closed += [sample[3] for sample in samples]
        details = whole["usage"]["completion_tokens_details"]
        assert details.get("closed_thoughts", 0) == sum(sample[3] is not None for sample in samples)
    assert "eos" in closed


def test_responses(served: Served) -> None:
    body = {"input": "Where?", "temperature": 0, "max_output_tokens": 60}
    whole = served.post("/v1/responses", **body).json()
    events = served.events("/v1/responses", **body)
    for answer in (whole, events[-1]["response"]):
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][1]["content"][0]["text"] == ANSWER
        assert answer["usage"]["output_tokens_details"]["closed_thoughts"] == 1
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 1


def test_messages(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Where?"}], "max_tokens": 60, "temperature": 0}
    whole = served.post("/v1/messages", **body).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text"]
    assert whole["content"][1]["text"] == ANSWER
    (usage,) = [event["usage"] for event in served.events("/v1/messages", **body) if event["type"] == "message_delta"]
    for details in (whole["usage"]["output_tokens_details"], usage["output_tokens_details"]):
        assert details["closed_thoughts"] == 1
        assert set(details) == {"thinking_tokens", "closed_thoughts"}


def test_other_routes_stay_as_they_are(served: Served) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 20, "skip_special_tokens": False}
    generated = served.post("/generate", text=PROMPT, sampling_params=sampling).json()
    assert generated["text"] == THOUGHT
    assert not {name for name in generated["meta_info"] if "closed" in name}
    completed = served.post("/v1/completions", prompt=PROMPT, temperature=0, max_tokens=20).json()
    assert completed["choices"][0]["text"] == THOUGHT
    assert completed["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("fields", "finish", "matched"),
    [
        ({"stop_token_ids": [EOS]}, "stop", EOS),
        ({"stop": THOUGHT}, "stop", THOUGHT),
        ({"ignore_eos": True, "max_tokens": 9}, "length", None),
        ({"max_tokens": 2}, "length", None),
    ],
)
def test_what_the_request_says_of_ends_holds_in_thoughts(
    served: Served, fields: dict[str, Any], finish: str, matched: int | str | None
) -> None:
    answer = served.chat(**fields)
    choice = answer["choices"][0]
    assert told(choice)[1:] == ("", finish, None)
    assert choice["matched_stop"] == matched
    assert list(answer["usage"]["completion_tokens_details"]) == ["reasoning_tokens"]


def test_logprobs_are_those_of_the_tokens(served: Served) -> None:
    answer = served.chat(logprobs=True, top_logprobs=1, return_token_ids=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] == len(answer["choices"][0]["token_ids"])
    (mark,) = [entry for entry in entries if entry["token"] == "</think>"]
    assert mark["top_logprobs"][0]["token"] == "<|im_end|>", "what the model would have said"
    assert mark["logprob"] < -50
