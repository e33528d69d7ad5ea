"""JSON that is nested too deeply is refused, whatever its strings hold."""

import random
from typing import Any

import httpx
import orjson
import pytest

from palladio.http.wire.body import MAX_DEPTH, read_json
from palladio.runtime.interface.errors import InvalidRequestError
from tests.http.wire.test_bad_requests import CHAT, error_of


def refusal(text: str | bytes) -> str | None:
    try:
        read_json(text, "it", is_counted=True)
    except InvalidRequestError as error:
        return str(error)
    return None


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[0, {"a":', "}, 1]")])
@pytest.mark.parametrize("is_bytes", [True, False])
def test_the_limit(opening: str, closing: str, is_bytes: bool) -> None:
    levels = opening.count("[") + opening.count("{")
    too_deep = f"it is nested deeper than {MAX_DEPTH} levels of objects and lists"
    for depth in (MAX_DEPTH // levels, MAX_DEPTH // levels + 1, 400, 5000):
        text = opening * depth + "1" + closing * depth
        message = refusal(text.encode() if is_bytes else text)
        assert message == (too_deep if depth * levels > MAX_DEPTH else None)


def test_what_strings_hold_does_not_count() -> None:
    assert read_json('["' + "[" * 500 + '", "\\"' + "{" * 500 + '"]', "it") == ["[" * 500, '"' + "{" * 500]


def test_many_values_side_by_side() -> None:
    assert len(read_json(b"[" + b"[{}]," * 10_000 + b"1]", "it", is_counted=True)) == 10_001


def test_malformed() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_json("{", "it", param="p", code="c")
    assert (caught.value.param, caught.value.code) == ("p", "c")
    assert (refusal("[" * 1000) or "").startswith("it is not valid JSON")
    assert (refusal(b"{") or "").startswith("it is not valid JSON")


def test_random_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palladio.http.wire.body.MAX_DEPTH", 4)
    choose = random.Random(0)

    def value(levels: int) -> Any:
        kind = choose.random()
        if not levels or kind < 0.2:
            return choose.choice(["\\", '"', "[", '\\"]', '{"', 1, None, "[" * 50])
        count = range(choose.randint(0, 3))
        if kind < 0.6:
            return [value(levels - 1) for _ in count]
        return {choose.choice(["a", '"[', "\\"]): value(levels - 1) for _ in count}

    depths = set()
    for _ in range(3000):
        made = value(7)
        depths.add(depth_of(made))
        assert (refusal(orjson.dumps(made)) is not None) == (depth_of(made) > 4)
    assert {4, 5} <= depths


@pytest.mark.parametrize("depth", [129, 900, 20_000])
@pytest.mark.parametrize(("opening", "closing"), [('{"items":', "}"), ("[", "]")])
def test_body_that_is_nested_deeply(http: httpx.Client, opening: str, closing: str, depth: int) -> None:
    nested, headers = opening * depth + "1" + closing * depth, {"content-type": "application/json"}
    for field in ("tools", "json_schema", "chat_template_kwargs", "messages"):
        for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize"):
            error = error_of(http.post(path, content=f'{{"{field}": {nested}}}', headers=headers))
            assert (error["code"], "128 levels" in error["message"]) == ("invalid_json", True)


def test_history_that_is_nested_deeply(http: httpx.Client) -> None:
    for depth in (129, 5000):
        call = {"function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
        messages = [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]
        error = error_of(http.post("/v1/chat/completions", json=CHAT | {"messages": messages}))
        assert error["param"] == "messages.1.tool_calls.0.function.arguments"
        assert "128 levels" in error["message"]
