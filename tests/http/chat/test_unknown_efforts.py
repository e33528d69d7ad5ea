"""reasoning_effort of a model that has no levels: the request is answered, with a warning."""

from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve

USER = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
NO_PARSER = ("none", "--reasoning-parser")


@pytest.mark.parametrize(
    ("path", "fields", "param", "parser", "words"),
    [
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort", *NO_PARSER),
        (CHAT, {"reasoning": {"effort": "high"}}, "reasoning.effort", *NO_PARSER),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort", "qwen3-thinking", "does not read it"),
        (CHAT, {"reasoning_effort": "none"}, "reasoning_effort", "qwen3-thinking", "no way to turn reasoning off"),
        ("/v1/responses", {"reasoning": {"effort": "low"}}, "reasoning.effort", *NO_PARSER),
        ("/api/chat", {"think": "low", "model": "default", "stream": False}, "think", *NO_PARSER),
        ("/tokenize", {"reasoning_effort": "low"}, "reasoning_effort", *NO_PARSER),
        ("/apply-template", {"reasoning_effort": "low"}, "reasoning_effort", *NO_PARSER),
    ],
)
def test_it_is_answered_with_a_warning(
    serve: Serve, engine: FakeEngine, path: str, fields: dict[str, Any], param: str, parser: str, words: str
) -> None:
    config = {"chat_template": "chatml", "reasoning_parser": parser}
    body = {"input" if path == "/v1/responses" else "messages": USER} | fields
    answer = httpx.post(serve(**config) + path, json=body)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert (warning["param"], warning["code"]) == (param, "unsupported_parameter")
    assert words in warning["message"]
    asked = len(engine.calls)
    refused = httpx.post(serve(**config, unknown_fields="refuse") + path, json=body)
    assert (refused.status_code, words in refused.text) == (400, True)
    assert len(engine.calls) == asked


def test_what_else_asks_for_reasoning_is_still_refused(serve: Serve) -> None:
    url = serve(chat_template="chatml", reasoning_parser="none")
    answer = httpx.post(url + CHAT, json={"messages": USER, "thinking": True, "reasoning_effort": "low"})
    assert answer.status_code == 400
    assert "--reasoning-parser" in answer.json()["error"]["message"]
