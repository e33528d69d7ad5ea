"""`truncation: "auto"`: the oldest items of a conversation that does not fit are left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.http.responses.truncation import droppable
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

PATH = "/v1/responses"


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str, text: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": text}


@pytest.mark.parametrize(
    ("items", "ways"),
    [
        ([said("user", "a")], []),
        ([said("user", "a"), said("assistant", "b"), said("user", "c")], [{0, 1}]),
        (
            [said("system", "s"), said("user", "a"), said("assistant", "b"), said("user", "c"), said("user", "d")],
            [{1, 2}, {1, 2, 3}],
        ),
        ([said("user", "a"), call("1"), output("1"), call("2"), output("2")], [{1, 2}]),
        ([said("user", "a"), call("1"), call("2"), output("1"), output("2")], []),
        (
            [said("user", "a"), call("1"), said("user", "b"), output("1"), said("assistant", "c"), said("user", "d")],
            [{0, 1, 3}, {0, 1, 2, 3, 4}],
        ),
        ([said("assistant", "a"), said("assistant", "b")], [{0}]),
        ([], []),
    ],
)
def test_what_may_be_left_out(items: list[dict[str, Any]], ways: list[set[int]]) -> None:
    assert [set(way) for way in droppable(items)] == ways


@pytest.fixture
def prompt_of(engine: FakeEngine, tokenizer: Tokenizer) -> Callable[[], str]:
    return lambda: tokenizer.decode(engine.calls[-1].prompt_ids)


def turns(count: int, size: int = 200) -> list[dict[str, Any]]:
    """Args: size: words of a message."""
    made = []
    for number in range(count):
        made += [said("user", f"question {number}: {'word ' * size}"), said("assistant", f"answer {number}")]
    return [*made, said("user", "the last question")]


def test_the_oldest_turns_are_left_out(
    http: httpx.Client, engine: FakeEngine, prompt_of: Callable[[], str], tokenizer: Tokenizer
) -> None:
    limit = engine.info.context_length
    items = turns(limit // 100)
    body = {"instructions": "Be brief.", "input": items}
    refused = http.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    for most, fields in ((limit - limit // 8, {}), (limit - 100, {"max_output_tokens": 100})):
        answer = http.post(PATH, json=body | {"truncation": "auto"} | fields).raise_for_status().json()
        assert answer["truncation"] == "auto"
        prompt = prompt_of()
        assert "Be brief." in prompt
        assert "the last question" in prompt
        assert "question 0:" not in prompt
        left = [number for number in range(limit // 100) if f"question {number}:" in prompt]
        assert left == list(range(left[0], limit // 100)), "the newest ones stay, without a gap"
        turn = len(tokenizer.encode(items[0]["content"])) + 50
        assert most - turn < len(engine.calls[-1].prompt_ids) <= most


def test_what_fits_stays_whole(http: httpx.Client, prompt_of: Callable[[], str]) -> None:
    http.post(PATH, json={"input": turns(3, 5), "truncation": "auto"}).raise_for_status()
    assert "question 0:" in prompt_of()


def test_calls_go_with_their_outputs(
    serve: Serve, engine: FakeEngine, prompt_of: Callable[[], str], tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    calls = "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.id }};{% endfor %}"
    template.write_text("{% for m in messages %}{{ m.content or '' }}" + calls + "{% endfor %}", encoding="utf-8")
    size = engine.info.context_length // 16
    items = [said("user", "do it")]
    for number in range(20):
        items += [call(str(number)), output(str(number), f"result {number}: {'word ' * size}")]
    url = serve(chat_template=str(template))
    httpx.post(url + PATH, json={"input": items, "truncation": "auto"}, timeout=20).raise_for_status()
    prompt = prompt_of()
    assert "do it" in prompt
    assert "result 19:" in prompt
    assert "result 0:" not in prompt
    calls_left = [number for number in range(20) if f"CALL f {number};" in prompt]
    assert calls_left == [number for number in range(20) if f"result {number}:" in prompt]


def test_what_cannot_be_shortened_is_refused(http: httpx.Client, engine: FakeEngine) -> None:
    long = "word " * 2 * engine.info.context_length
    for text in (long, [*turns(2), said("user", long)]):
        answer = http.post(PATH, json={"input": text, "truncation": "auto"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    wrong = http.post(PATH, json={"input": turns(2), "truncation": "auto", "tools": [{"type": "function"}]})
    assert wrong.json()["error"]["param"].startswith("tools.0")


def test_stored_conversations_are_kept_whole(
    client: openai.OpenAI, engine: FakeEngine, prompt_of: Callable[[], str]
) -> None:
    first: Any = client.responses.create(model=MODEL, input=turns(2), truncation="auto")
    size = engine.info.context_length // 8
    for number in range(3):
        text = f"more {number}: {'word ' * size}"
        first = client.responses.create(model=MODEL, input=text, previous_response_id=first.id, truncation="auto")
    assert "question 0:" not in prompt_of()
    assert "more 2:" in prompt_of()
    with pytest.raises(openai.BadRequestError, match="too long"):
        client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
