"""Messages → prompt."""

import asyncio
import json
import logging
from pathlib import Path

import httpx
import pytest

from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.template_format import TemplateFacts, load_template
from palladio.http.prompts.text_encoding import Conversation, TextEncoder, encode_chat
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.tiny_tokenizer import build_tiny_sentencepiece, build_tiny_tokenizer

USER = {"role": "user", "content": "hi"}
PARTS_TEMPLATE = "{% for m in messages %}{% for part in m['content'] %}[{{ part['text'] }}]{% endfor %}{% endfor %}"


def render(tokenizer: Tokenizer, messages: list, template: str | None = None, **kwargs) -> str:
    return ChatTemplate(HttpConfig(chat_template=template)).render(tokenizer, messages, **kwargs)


def test_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    assert render(tokenizer, [USER]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(tokenizer, [USER], add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_content_forms(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    text = render(
        tokenizer,
        [
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": parts, "name": "bob"},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "1"},
        ],
    )
    assert "<|im_start|>system\nrules<|im_end|>" in text
    assert "<|im_start|>user\na b<|im_end|>" in text
    assert "<|im_start|>assistant\n<|im_end|>" in text
    assert "<|im_start|>tool\nr<|im_end|>" in text


def test_templates_that_take_parts_get_parts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "parts.jinja"
    path.write_text(PARTS_TEMPLATE)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(tokenizer, [{"role": "user", "content": parts}], str(path)) == "[a][b]"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_content_and_reasoning_beside_calls_are_one_text_for_gpt_oss(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Its own template refuses both; an answer of ours may have both, and clients send it back."""
    path = tmp_path / "one.jinja"
    path.write_text(
        "{% for m in messages %}{% if m.content and m.thinking and m.tool_calls %}"
        "{{ raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}"
        "{% endif %}{{ m.thinking or m.content }};{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    texts = ({"content": "b", name: "Hm."}, {"content": "b"}, {"content": None, name: "Hm."})
    messages = [USER, *({"role": "assistant", "tool_calls": [call], **text} for text in texts)]
    assert render(tokenizer, messages, str(path)) == "hi;Hm.\nb;b;Hm.;"


def test_tool_call_arguments_become_objects(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tools.jinja"
    path.write_text("{% for c in messages[-1].tool_calls %}{{ c.function.arguments.city }}{% endfor %}")

    def call(arguments: object) -> list:
        function = {"name": "f", "arguments": arguments}
        return [
            USER | {"content": ""},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        ]

    assert render(tokenizer, call('{"city": "Paris"}'), str(path)) == "Paris"
    assert render(tokenizer, call({"city": "Rome"}), str(path)) == "Rome"
    assert render(tokenizer, call(""), str(path)) == ""
    for wrong in ([1], 5):
        with pytest.raises(InvalidRequestError) as caught:
            render(tokenizer, call(wrong), str(path))
        assert caught.value.param == "messages.1.tool_calls.0.function.arguments"
    with pytest.raises(InvalidRequestError, match="name"):
        render(tokenizer, [{"role": "assistant", "tool_calls": [{}]}])


def test_continuing_the_last_message(tokenizer: Tokenizer) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe answer"
    start = {"role": "assistant", "content": "The answer"}
    assert render(tokenizer, [USER, start], continue_final_message=True) == expected
    assert render(tokenizer, [USER, start | {"prefix": True}]) == expected
    for messages, fields in (
        ([USER], {"continue_final_message": True}),
        ([USER, start], {"continue_final_message": True, "add_generation_prompt": True}),
        ([USER | {"prefix": True}], {}),
        ([start | {"prefix": True}, USER], {}),
        ([USER, start | {"prefix": "yes"}], {}),
    ):
        with pytest.raises(InvalidRequestError):
            render(tokenizer, messages, **fields)


def test_kwargs(tokenizer: Tokenizer) -> None:
    assert "<think>" not in render(tokenizer, [USER], kwargs={"enable_thinking": True})
    assert render(tokenizer, [USER], kwargs={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    off = ChatTemplate(HttpConfig(default_chat_template_kwargs='{"enable_thinking": false}'))
    assert "<think>" in off.render(tokenizer, [USER])
    assert "<think>" not in off.render(tokenizer, [USER], kwargs={"enable_thinking": True})
    for name in ("messages", "tools", "tokenize"):
        with pytest.raises(InvalidRequestError):
            render(tokenizer, [USER], kwargs={name: 1})


@pytest.mark.parametrize(
    ("template", "name", "hint"),
    [
        (None, "enable_thinkng", "did you mean enable_thinking?"),
        ("{{ messages }}{{ documents_title }}", "document_titel", "did you mean documents_title?"),
        ("{{ messages }}{{ tone }}{{ bos_token }}{{ strftime_now('%Y') }}", "custom", "it reads tone"),
        ("{% set local = messages %}{{ local }}", "other", "it reads no variables"),
    ],
)
def test_kwargs_that_the_template_does_not_read(
    tokenizer: Tokenizer, tmp_path: Path, template: str | None, name: str, hint: str
) -> None:
    if template is not None:
        (tmp_path / "a.jinja").write_text(template)
    chat = ChatTemplate(HttpConfig(chat_template=str(tmp_path / "a.jinja") if template else None))
    with pytest.raises(InvalidRequestError) as caught:
        chat.render(tokenizer, [USER], kwargs={name: 1})
    assert (caught.value.param, caught.value.code) == (f"chat_template_kwargs.{name}", "unknown_parameter")
    assert str(caught.value).endswith(hint)
    chat.render(tokenizer, [USER], kwargs={"enable_thinking": False, "thinking": True})  # clients send these to any


def test_what_the_template_sets_when_it_is_not_given_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text(
        "{% if tone is not defined %}{% set tone = 'a' %}{% endif %}{{ tone }}{{ messages }}"
    )
    chat = ChatTemplate(HttpConfig(chat_template=str(tmp_path / "a.jinja")))
    assert chat.render(tokenizer, [USER], kwargs={"tone": "b"}).startswith("b")


def test_of_a_malformed_template_the_fault_is_told(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{% if %}")
    with pytest.raises(InvalidRequestError, match="the chat template does not accept") as caught:
        render(tokenizer, [USER], str(tmp_path / "a.jinja"), kwargs={"tone": 1}, tools=[{}])
    assert caught.value.param == "messages"


def test_a_macro_may_have_a_parameter_called_tools(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As gpt-oss's has."""
    macro = "{% macro show(tools) %}{{ tools }}{% endmacro %}"
    (tmp_path / "a.jinja").write_text(macro + "{% if tools %}{{ show(tools) }}{% endif %}{{ messages }}")
    assert "TOOL" in render(tokenizer, [USER], str(tmp_path / "a.jinja"), tools=[{"name": "TOOL"}])


def test_no_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(build_tiny_sentencepiece(tmp_path))
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        render(tokenizer, [USER])
    assert render(tokenizer, [USER], "llama-2") == "<s>[INST] hi [/INST]"


def test_bos_is_not_doubled(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path, add_bos=True))
    chat = ChatTemplate(HttpConfig(chat_template="llama-3-instruct"))
    encoder = TextEncoder(FakeEngine(tokenizer), bounded=True)
    prompt, _ = asyncio.run(encode_chat(chat, encoder, Conversation([USER])))
    assert prompt.token_ids.count(0) == 1


@pytest.mark.parametrize("name", ["chatml", "gemma", "llama-2", "llama-3-instruct", "mistral"])
def test_built_in_templates(tokenizer: Tokenizer, name: str) -> None:
    messages = [
        {"role": "system", "content": "rules"},
        USER,
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "more"},
    ]
    text = render(tokenizer, messages, name)
    assert [text.count(word) for word in ("rules", "hi", "hello", "more")] == [1, 1, 1, 1]
    assert TemplateFacts.of(load_template(name)).content_format == "string"
    if name in ("gemma", "llama-2", "mistral"):
        with pytest.raises(InvalidRequestError, match="must alternate"):
            render(tokenizer, [USER, USER], name)


def test_template_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"chat_template": "A"}))
    (tmp_path / "b.json").write_text(json.dumps({"chat_template": [{"name": "default", "template": "B"}]}))
    assert load_template(str(tmp_path / "a.json")) == "A"
    assert load_template(str(tmp_path / "b.json")) == "B"
    for name, text in (("c.json", "{}"), ("d.json", "{"), ("e.json", "[]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match="--chat-template"):
            load_template(str(tmp_path / name))
    with pytest.raises(ConfigError, match="chatml"):
        load_template("no-such-template")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}", "string"),
        (PARTS_TEMPLATE, "openai"),
        ("{% for m in messages %}{% for p in m.content | list %}{{ p.text }}{% endfor %}{% endfor %}", "openai"),
        (
            "{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "openai",
        ),
        ("{% generation %}{% for p in messages[0].content %}{% break %}{% endfor %}{% endgeneration %}", "openai"),
        ("{% if %}", "string"),
        ("", "string"),
    ],
)
def test_content_format(template: str, expected: str) -> None:
    assert TemplateFacts.of(template).content_format == expected


@pytest.mark.usefixtures("own_server")
def test_format_is_logged_once(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "palladio")
    for _ in range(2):
        assert http.post("/v1/chat/completions", json={"messages": [USER]}).status_code == 200
    assert caplog.text.count("Detected chat template content format: string") == 1


@pytest.mark.parametrize("name", ["self", "messages", "seconds"])
def test_defaults_must_not_hold_what_the_server_sets(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--default-chat-template-kwargs must not hold '{name}'"):
        ChatTemplate(HttpConfig(default_chat_template_kwargs=f'{{"{name}": 1}}'))
