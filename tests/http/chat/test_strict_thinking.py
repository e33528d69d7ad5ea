"""--enable-strict-thinking: marks of tool calls may not stand in reasoning."""

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from tests.fake_engine import MODEL, FakeEngine

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


NO_EFFECT = [
    {"reasoning_parser": "qwen3", "tool_call_parser": "kimi_k2"},  # its marks are several tokens of this tokenizer
    {"reasoning_parser": "none", "tool_call_parser": "qwen25"},
]


def flags(folder: Path) -> dict[str, Any]:
    template = folder / "plain.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    return {"chat_template": str(template), "enable_strict_thinking": True}


@pytest.fixture
def ask(serve: Any, engine: FakeEngine, tmp_path: Path) -> Any:
    """Ask a server with these flags, and return what the engine gets about the thoughts."""

    def ask(fields: dict[str, Any] | None = None, route: str = "chat/completions", **config: Any) -> Any:
        url = serve(**{**flags(tmp_path), **config})
        messages = [{"role": "user", "content": "x"}]
        body = {"model": MODEL, "input" if route == "responses" else "messages": messages, **(fields or {})}
        assert httpx.post(f"{url}/v1/{route}", json=body, timeout=20).status_code == 200
        return engine.calls[-1].params.thinking

    return ask


@pytest.mark.parametrize("fields", [{}, {"thinking_token_budget": 7}])
def test_marks_that_are_one_token_are_forbidden(ask: Any, engine: FakeEngine, fields: dict[str, Any]) -> None:
    marks = tuple(engine.tokenizer.encode(tag, False)[0] for tag in ("<tool_call>", "</tool_call>"))
    thinking = ask(fields, reasoning_parser="qwen3", tool_call_parser="qwen25")
    assert (thinking.forbidden_ids, thinking.budget) == (marks, fields.get("thinking_token_budget"))


@pytest.mark.parametrize(("route", "fields"), [("messages", {"max_tokens": 8}), ("responses", {})])
def test_other_routes_of_conversations_forbid_the_same(
    ask: Any, engine: FakeEngine, route: str, fields: dict[str, Any]
) -> None:
    marks = tuple(engine.tokenizer.encode(tag, False)[0] for tag in ("<tool_call>", "</tool_call>"))
    parsers = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
    assert ask(fields, route, **parsers).forbidden_ids == marks
    assert ask(fields, route, **parsers, enable_strict_thinking=False) is None


@pytest.mark.parametrize("parsers", NO_EFFECT)
def test_nothing_else_is(ask: Any, parsers: dict[str, str]) -> None:
    assert ask(**parsers) is None


@pytest.mark.parametrize("parsers", [*NO_EFFECT, {"reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}])
def test_a_flag_without_effect_is_one_warning_at_the_start(
    engine: FakeEngine, tmp_path: Path, parsers: dict[str, str]
) -> None:
    with contextlib.closing(Storage.temporary()) as storage:
        app = create_app(engine, HttpConfig(**flags(tmp_path), **parsers), storage=storage)
        warnings = [line for line in app.state.template_warnings() if line.startswith("--enable-strict-thinking")]
    assert len(warnings) == (parsers in NO_EFFECT)
