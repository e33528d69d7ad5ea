"""--enable-strict-thinking: marks of tool calls may not stand in reasoning."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine import MODEL, FakeEngine

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def ask(serve: Any, engine: FakeEngine, tmp_path: Path) -> Any:
    """Asks a server with these flags, and gives what the engine is told of the thoughts."""
    template = tmp_path / "plain.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")

    def ask(fields: dict[str, Any] | None = None, **config: Any) -> Any:
        url = serve(chat_template=str(template), enable_strict_thinking=True, **config)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **(fields or {})}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20).status_code == 200
        return engine.calls[-1].params.thinking

    return ask


@pytest.mark.parametrize("fields", [{}, {"thinking_token_budget": 7}])
def test_marks_that_are_one_token_are_forbidden(ask: Any, engine: FakeEngine, fields: dict[str, Any]) -> None:
    marks = tuple(engine.tokenizer.encode(tag, False)[0] for tag in ("<tool_call>", "</tool_call>"))
    thinking = ask(fields, reasoning_parser="qwen3", tool_call_parser="qwen25")
    assert (thinking.forbidden_ids, thinking.budget) == (marks, fields.get("thinking_token_budget"))


@pytest.mark.parametrize(
    "flags",
    [
        {"reasoning_parser": "qwen3", "tool_call_parser": "kimi_k2"},  # its marks are several tokens of this tokenizer
        {"reasoning_parser": "none", "tool_call_parser": "qwen25"},
    ],
)
def test_nothing_else_is(ask: Any, flags: dict[str, str]) -> None:
    assert ask(**flags) is None
