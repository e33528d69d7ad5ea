"""Arguments of earlier calls that are no JSON object, such as those that max_tokens cut off."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

CUT = '{"city": "Par", "days": [1, {"from": "Mon'
USER = {"role": "user", "content": ""}
TEMPLATES = {  # how families write the arguments of a call
    "between strings": "{{ '<call>' + call.arguments + '</call>' }}",
    "as JSON": "<call>{{ call.arguments | tojson }}</call>",
    "as either": "<call>{% if call.arguments is string %}{{ call.arguments }}{% else %}"
    "{{ call.arguments | tojson }}{% endif %}</call>",
    "by name, with a filter": "{% for name, value in call.arguments | items %}<{{ name }}>{{ value }}{% endfor %}",
    "by name": "{% for name, value in call.arguments.items() %}<{{ name }}>{{ value }}{% endfor %}",
}


def render(tokenizer: Tokenizer, folder: Path, written: str, arguments: object) -> str:
    path = folder / "template.jinja"
    loops = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set call = c.function %}", "{% endfor %}" * 2
    path.write_text(written.join(loops))
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return ChatTemplate(HttpConfig(chat_template=str(path))).render(tokenizer, turns)


@pytest.mark.parametrize("name", TEMPLATES)
def test_cut_off_arguments_are_given_as_they_are(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    text = render(tokenizer, tmp_path, TEMPLATES[name], CUT)
    by_name = "<city>Par<days>[1, {'from': 'Mon'}]"
    written = {"as JSON": f"<call>{json.dumps(CUT)}</call>"}.get(name, f"<call>{CUT}</call>")
    assert text == (by_name if name.startswith("by name") else written)


@pytest.mark.parametrize("arguments", ["Paris", "[1]", "NaN", '{"a": NaN', "{", "{'a': 1}"])
def test_other_text_is_an_argument_where_they_have_names(tokenizer: Tokenizer, tmp_path: Path, arguments: str) -> None:
    assert render(tokenizer, tmp_path, TEMPLATES["by name"], arguments) == f"<arguments>{arguments}"
    assert render(tokenizer, tmp_path, TEMPLATES["between strings"], arguments) == f"<call>{arguments}</call>"


def test_limits_hold_for_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for arguments in ("[" * 20_000, '{"a":' * 10_000):
        with pytest.raises(InvalidRequestError, match="holds more than"):
            render(tokenizer, tmp_path, TEMPLATES["by name"], arguments)
    deep = '{"a":' * 500
    assert render(tokenizer, tmp_path, TEMPLATES["by name"], deep) == f"<arguments>{deep}"


def test_a_conversation_goes_on_after_a_call_that_was_cut_off(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{{ (m.tool_calls or []) | tojson }}{% endfor %}")
    url = serve(chat_template=str(path))
    user, function = {"role": "user", "content": "hi"}, {"name": "now", "arguments": CUT}
    call = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    for route, body in (
        ("/v1/chat/completions", {"messages": [user, call, user]}),
        ("/v1/chat/completions", {"messages": [user, {"role": "assistant", "function_call": function}, user]}),
        ("/v1/responses", {"input": [user, {"type": "function_call", "call_id": "a", **function}, user]}),
    ):
        answer = httpx.post(url + route, json=body)
        assert answer.status_code == 200, answer.text
