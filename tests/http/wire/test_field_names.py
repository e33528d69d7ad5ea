"""Errors name fields as the client sent them, at whatever time they come."""

import itertools
import json
import re
from typing import Any

import httpx
import pytest

from palladio.http.wire.errors import error_body
from palladio.http.wire.fields import NONE_PASS, FieldMap, WarningList, Warnings, message_paths
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError, OverloadedError
from tests.fake_engine import FakeEngine

NAMES = FieldMap(
    paths={
        "max_tokens": "limit",
        "tools.*.function.parameters": "tools.*.input_schema",
        "tools.*.function": "tools.*",
        "tools.7.function": "tools.9",
        "stop": "stop_sequences",
    },
    wholes=message_paths("input", ["instructions", "input.4"]),
    params={"limit": "sampling_params.limit"},
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("max_tokens", "limit"),
        ("my_max_tokens", "my_max_tokens"),
        ("other.max_tokens", "other.max_tokens"),
        ("stop_token_ids", "stop_token_ids"),
        ("messages", "input"),
        ("messages.0.content", "instructions"),
        ("messages.1.content.2.type", "input.4"),
        ("messages.9.role", "input"),
        ("tools.3.function.name", "tools.3.name"),
        ("tools.3.function.parameters.type", "tools.3.input_schema.type"),
        ("tools.7.function.name", "tools.9.name"),
        ("tools.x.function", "tools.x.function"),
        ("tools", "tools"),
    ],
)
def test_names_are_of_whole_parts(path: str, name: str) -> None:
    assert NAMES.name(path) == name


def test_translations_follow_each_other() -> None:
    outer = FieldMap(paths={"max_completion_tokens": "max_output_tokens"}, params={"max_output_tokens": "in.it"})
    names = FieldMap(paths={"max_tokens": "max_completion_tokens", "prompt": "messages"}).within(outer)
    value = "max_tokens {param}"
    error = InvalidRequestError.of("{param} is over, not {value!r}", param="max_tokens", value=value)
    body = error_body(error, names)
    assert (body.message, body.param) == ("max_output_tokens is over, not 'max_tokens {param}'", "in.it")
    plain = error_body(InvalidRequestError("Send a shorter prompt.", param="prompt"), names)
    assert (plain.message, plain.param) == ("Send a shorter prompt.", "messages")
    assert str(error) == "max_tokens is over, not 'max_tokens {param}'", "logs have the engine's names"


def test_errors_leave_a_translation_renamed() -> None:
    """With what else they say, and only those that are about a request."""
    error = ContextLengthError.of_prompt("{prompt} is too long", 9, 8)
    with pytest.raises(ContextLengthError) as caught, FieldMap(paths={"prompt": "messages"}).renaming():
        raise error
    assert (caught.value.param, caught.value.length, caught.value.code) == ("messages", error.length, error.code)
    assert error.param == "prompt"
    with pytest.raises(OverloadedError) as other, NAMES.renaming():
        raise OverloadedError("later", retry_after=7)
    assert other.value.retry_after == 7


def test_warnings_are_values() -> None:
    """A list of them begins with those before it, which stay as they are."""
    before = Warnings(are_errors=False)
    warnings = WarningList(before, FieldMap(paths={"a": "b"}))
    for _ in range(2):
        warnings.warn(InvalidRequestError.of("unknown field: {param}", param="a", code="x"))
    again = WarningList(warnings.found)
    assert again.has("b")
    again.warn(InvalidRequestError.of("{param} is odd", param="c"), outcome="kept")
    noted: list[tuple[str, str]] = []
    again.found.note_since(warnings.found, lambda param, code: noted.append((param, code)))
    assert (noted, before.fields()) == ([("c", "")], {})
    assert again.found.fields() == {
        "warnings": [
            {"message": "unknown field: b (ignored)", "param": "b", "code": "x"},
            {"message": "c is odd (kept)", "param": "c", "code": None},
        ]
    }
    with pytest.raises(InvalidRequestError):
        WarningList(NONE_PASS).warn(InvalidRequestError("no", param="a"))


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 8}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 8}, "max_completion_tokens"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 8}, "max_output_tokens"),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 8}, "max_tokens"),
        ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 8}}, "max_new_tokens"),
    ],
)
def test_an_error_has_the_clients_names_at_any_time(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any], name: str
) -> None:
    """Before the first output, and when the status of the stream has gone out."""
    value = "max_tokens {param}"
    engine.fail = ContextLengthError.of("{param} is too much: {value!r}", param="max_tokens", value=value)
    for engine.fail_after, is_stream in itertools.product((0, 2), (False, True)):
        answer = http.post(path, json={"model": "qwen/qwen2.5-0.5b-instruct", "stream": is_stream, **body})
        assert f"{name} is too much: 'max_tokens {{param}}'" in answer.text
        is_late = is_stream and engine.fail_after > 0
        assert answer.status_code == (200 if is_late else 400)
        if path != "/v1/messages" and not is_late:
            assert answer.json()["error"]["param"].removeprefix("sampling_params.") == name


def test_a_response_in_the_background_names_its_fields(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail, engine.fail_after = ContextLengthError.of("{param} is too much", param="max_tokens"), 2
    body = {
        "model": "qwen/qwen2.5-0.5b-instruct",
        "input": "hi",
        "max_output_tokens": 8,
        "background": True,
        "stream": True,
    }
    text = http.post("/v1/responses", json=body).text
    failed = json.loads(re.findall(r"(?m)^data: (.*response\.failed.*)$", text)[-1])
    assert failed["response"]["error"]["message"] == "max_output_tokens is too much"


def test_tokenizing_names_what_was_given(http: httpx.Client) -> None:
    text = "word " * 80_000
    for body in ({"prompt": text}, {"messages": [{"role": "user", "content": text}]}):
        error = http.post("/tokenize", json=body).json()["error"]
        assert error["message"].endswith("Send it in parts.")
        assert error["param"] in body


def test_a_parser_that_is_not_there(http: httpx.Client) -> None:
    body = {"text": "x", "tool_call_parser": "hermez", "tools": [{"function": {"name": "f"}}]}
    error = http.post("/parse_function_call", json=body).json()["error"]
    assert (error["param"], error["message"].split(":")[0]) == ("tool_call_parser", "tool_call_parser hermez")
