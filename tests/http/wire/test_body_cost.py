"""What bodies may cost is bounded before they are read: bytes, and the values that their JSON holds."""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson
import pydantic
import pytest

from palladio.http.anthropic.anthropic_messages import AnthropicConversation
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest
from palladio.http.generation.context import BASE_BYTES, BASE_VALUES, MOST_BYTES, TOKEN_BYTES, RequestLimits
from palladio.http.prompts.template_calls import CallForms
from palladio.http.prompts.tool_history import HISTORY_VALUES, ToolHistory
from palladio.http.responses.response_items import chat_messages
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.body import FIELD_COST, LIST_COST, NESTED_VALUES, JsonMeter, read_json
from palladio.http.wire.fields import NONE_PASS, WarningList
from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.fake_engine import MODEL, FakeEngine

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses", "/v1/responses/input_tokens"),
    *("/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/embeddings", "/encode"),
    *("/invocations", "/v1/batches", "/parse_function_call", "/separate_reasoning", "/abort_request"),
)


def cost_of(value: Any) -> int:
    """As the meter should count it: separators, not values."""
    if isinstance(value, dict):
        inner = sum(FIELD_COST + cost_of(item) for item in value.values())
        return LIST_COST + inner + max(0, len(value) - 1)
    if isinstance(value, list):
        return LIST_COST + sum(map(cost_of, value)) + max(0, len(value) - 1)
    return 0


def random_value(dice: random.Random, levels: int) -> Any:
    kind = dice.random()
    if not levels or kind < 0.3:
        return dice.choice([1, 2.5, None, True, -7])
    if kind < 0.65:
        return [random_value(dice, levels - 1) for _ in range(dice.randint(0, 4))]
    return {f"k{i}": random_value(dice, levels - 1) for i in range(dice.randint(0, 4))}


def test_the_meter_counts_what_is_outside_of_strings() -> None:
    dice = random.Random(1)
    texts = ['"', "\\", '\\"', "[[{", "a,b:c", "é🎉", "", '\\\\"']
    for _ in range(300):
        value = random_value(dice, 5)
        meter = JsonMeter(10**9)
        meter.feed(orjson.dumps(value))
        quotes_count = meter.cost - cost_of(value)
        assert 0 <= quotes_count <= str(value).count("'")  # of keys, where they are more than the separators
        words = [dice.choice(texts) * dice.randint(1, 3) for _ in range(dice.randint(1, 9))]
        raw = orjson.dumps([words, value])
        whole, pieces = JsonMeter(10**9), JsonMeter(10**9)
        whole.feed(raw)
        for begin in range(0, len(raw), 3):
            pieces.feed(raw[begin : begin + 3])
        containers = raw_openings([words, value])
        assert whole.cost >= LIST_COST * containers
        assert whole.cost <= LIST_COST * containers + (FIELD_COST + 2) * (raw.count(b":") + raw.count(b",") + 2)
        assert abs(pieces.cost - whole.cost) <= len(words) + len(raw)  # quotes and commas may fall into other pieces
        assert pieces.cost >= LIST_COST * containers


def raw_openings(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(raw_openings, inner))


def test_a_long_text_costs_nothing() -> None:
    meter = JsonMeter(10)
    assert not meter.exceeds(orjson.dumps('def f(a, b): return {a: [b, "\\"", {}]}\n' * 10_000))
    assert meter.exceeds(b",[[],[]")


@pytest.mark.parametrize("text", ['"' * 100_000, "\\" * 100_000, '\\"' * 50_000, "[" * 100_000, '"a",' * 25_000])
def test_the_meter_takes_little_time(text: str) -> None:
    data = text.encode()
    assert least_cpu_seconds(lambda: JsonMeter(10**9).exceeds(data), enough=0.2) < 0.2


def test_lists_in_lists_are_refused_while_they_arrive(http: httpx.Client) -> None:
    unit = b"[" * 60 + b"]" * 60
    head = orjson.dumps(CHAT)[:-1] + b',"chat_template_kwargs":{"a":['
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield head
        for _ in range(400):
            sent += 1
            yield b",".join([unit] * 200) + b","

    answer = http.post("/v1/chat/completions", content=body(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert error["code"] == "request_too_large"
    assert "--max-request-values" in error["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_that_reads_json(serve: Callable[..., str], route: str) -> None:
    with httpx.Client(base_url=serve(max_request_values=5000), timeout=20) as client:
        answer = client.post(route, json={"messages": [[]] * 300})
    assert answer.status_code == 413
    message = str(answer.json()["error"]["message"])
    assert message.startswith("the request body holds more than 5000 values")
    assert "--max-request-values" in message


def test_a_prompt_of_ids_that_fits_is_not_refused_for_its_values(serve: Callable[..., str]) -> None:
    with httpx.Client(base_url=serve(), timeout=20) as client:
        answer = client.post("/v1/completions", json={"prompt": [5] * 2000, "max_tokens": 4})
        assert answer.status_code == 200
        many = client.post("/v1/completions", json={"prompt": [[5] * 1900] * 100, "max_tokens": 1})
        assert many.status_code == 200


@pytest.mark.parametrize("context_length", [2048, 131_072, 1 << 20])
def test_default_limits_follow_from_the_context(tokenizer: Tokenizer, context_length: int) -> None:
    sizes = {"context_length": context_length, "max_total_tokens": context_length}
    info = dataclasses.replace(FakeEngine(tokenizer).info, **sizes)
    fixed = type("Fixed", (FakeEngine,), {"info": property(lambda self: info)})(tokenizer)
    limits = RequestLimits(fixed, HttpConfig())
    assert limits.max_bytes == min(BASE_BYTES + TOKEN_BYTES * context_length, MOST_BYTES)
    assert limits.max_values == BASE_VALUES + context_length > context_length
    given = RequestLimits(fixed, HttpConfig(max_request_bytes=1 << 30, max_request_values=5))
    assert (given.max_bytes, given.max_values) == (1 << 30, 5)


def test_limits_before_the_model_is_known(tokenizer: Tokenizer) -> None:
    engine = FakeEngine(tokenizer)
    engine.state = "starting"
    assert RequestLimits(engine, HttpConfig()).max_bytes == MOST_BYTES


def test_json_in_strings() -> None:
    text = "[" + "[]," * (NESTED_VALUES // LIST_COST) + "1]"
    with pytest.raises(InvalidRequestError, match=f"it holds more than {NESTED_VALUES} values"):
        read_json(text, "it")
    history = ToolHistory(CallForms())
    arguments = json.dumps({"a": [[]] * 4000})
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    for _ in range(HISTORY_VALUES // (LIST_COST * 4001)):
        history.convert({"role": "assistant", "tool_calls": [dict(call)]}, "messages.0")
    with pytest.raises(InvalidRequestError, match=r"messages\.1\.tool_calls\.0.*holds more than"):
        history.convert({"role": "assistant", "tool_calls": [dict(call)]}, "messages.1")


def wire_models() -> list[type[WireModel]]:
    found, pending = [], [WireModel]
    while pending:
        model = pending.pop()
        found.append(model)
        pending += model.__subclasses__()
    return found[1:]


WRONG: tuple[Any, ...] = (
    [None] * 2000,
    ["a"] * 2000,
    [1] * 2000,
    [{}] * 2000,
    {str(i): None for i in range(2000)},
    {str(i): "a" for i in range(2000)},
    {str(i): 1 for i in range(2000)},
)


@pytest.mark.parametrize("model", wire_models(), ids=lambda model: model.__name__)
def test_no_field_collects_an_error_for_each_entry(model: type[WireModel]) -> None:
    """Else a large body is an error message of seconds."""
    for name in model.model_fields:
        for value in WRONG:
            count = 0
            try:
                model.model_validate({name: value})
            except pydantic.ValidationError as error:
                count = error.error_count()
            assert count < 60, (name, str(value)[:40])


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/chat/completions", CHAT | {"logit_bias": {str(i): "x" for i in range(5000)}}),
        ("/v1/chat/completions", CHAT | {"stop": ["a"] * 5000}),
        ("/v1/chat/completions", CHAT | {"stop_token_ids": [1] * 5000}),
        ("/v1/chat/completions", CHAT | {"guided_choice": ["a"] * 70_000}),
        ("/v1/messages", CHAT | {"stop_sequences": ["a"] * 5000}),
        ("/v1/responses", {"input": "a", "metadata": {str(i): 1 for i in range(5000)}}),
        ("/generate", {"text": "a", "sampling_params": [{}] * 5000}),
    ],
)
def test_too_many_entries_are_counted_first(http: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    answer = http.post(route, json=fields)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "takes at most" in message or "5000 entries for 1 prompts" in message


def test_turns_of_one_side_are_joined_once() -> None:
    texts = [{"role": "user", "content": "a" * 1000} for _ in range(12_000)]
    body = CountTokensRequest(messages=texts)
    assert least_cpu_seconds(lambda: AnthropicConversation(body, WarningList(NONE_PASS)), enough=0.5, turns=3) < 0.5
    (message,) = AnthropicConversation(body, WarningList(NONE_PASS)).messages
    assert message["content"] == "\n".join(["a" * 1000] * 12_000)
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a" * 1000}]}
    items = [(f"input.{i}", item) for i in range(12_000)]
    assert least_cpu_seconds(lambda: chat_messages(items), enough=0.5, turns=3) < 0.5
    assert chat_messages(items)[0] == [{"role": "assistant", "reasoning_content": "a" * 12_000_000}]
