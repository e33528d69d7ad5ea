"""Chat requests that bring their prompt's token ids, or a template of their own."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve

USER = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ note }}"


def ask(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)


def refusal(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


@pytest.fixture
def trusting(serve: Serve) -> str:
    return serve(trust_request_chat_template=True)


@pytest.mark.parametrize("messages", [{}, {"messages": []}, {"messages": USER}])
def test_input_ids_are_the_prompt(serve: Serve, engine: FakeEngine, messages: dict[str, Any]) -> None:
    answer = ask(serve(), input_ids=[5, 6, 7], max_tokens=3, **messages)
    assert answer.json()["usage"]["prompt_tokens"] == 3, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    assert engine.calls[-1].prompt_ids == [5, 6, 7]


def test_reasoning_that_the_given_prompt_has_begun(serve: Serve, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.reply = "I think</think>done"
    ids = tokenizer.encode("hi<think>\n", add_special_tokens=False)
    message = ask(serve(reasoning_parser="qwen3"), input_ids=ids).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I think", "done")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input_ids": []}, "input_ids", "one at least"),
        ({"input_ids": [5, 10**9]}, "input_ids", "token ids in 0 … "),
        ({"input_ids": [-1]}, "input_ids", "token ids in 0 … "),
        ({"input_ids": [[5]]}, "input_ids", "list of token ids"),
        ({"input_ids": [5], "add_generation_prompt": True}, "add_generation_prompt", "no effect with input_ids"),
        ({"input_ids": [5], "chat_template_kwargs": {}}, "chat_template_kwargs", "no effect with input_ids"),
        ({"input_ids": [5] * 3000}, "input_ids", "too long"),
        ({}, "messages", "at least 1 message, or input_ids"),
    ],
)
def test_prompts_that_are_refused(http: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    named, message = refusal(http.post("/v1/chat/completions", json=fields))
    assert named == param
    assert words in message


def test_reasoning_cannot_be_switched_in_a_given_prompt(serve: Serve, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}{{ enable_thinking }}", encoding="utf-8")
    url = serve(reasoning_parser="qwen3", chat_template=str(template))
    param, message = refusal(ask(url, input_ids=[5], thinking=False))
    assert param == "thinking"
    assert "no effect with input_ids" in message
    assert ask(url, messages=USER, thinking=False).status_code == 200


def test_input_ids_are_cut_as_rendered_prompts_are(serve: Serve, engine: FakeEngine) -> None:
    ask(serve(), input_ids=[5, 6, 7, 8], truncate_prompt_tokens=2, max_tokens=1)
    assert engine.calls[-1].prompt_ids == [7, 8]


def test_a_template_of_the_request(trusting: str, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    kwargs = {"note": "!"}
    assert ask(trusting, messages=USER, chat_template=TEMPLATE, chat_template_kwargs=kwargs).status_code == 200
    assert tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False) == "<user>hi!"
    ask(trusting, messages=USER)
    assert "im_start" in tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False), "the server's again"


def test_only_servers_that_trust_take_templates(serve: Serve) -> None:
    param, message = refusal(ask(serve(), messages=USER, chat_template=TEMPLATE))
    assert param == "chat_template"
    assert "--trust-request-chat-template" in message


@pytest.mark.parametrize(
    ("template", "param", "words"),
    [
        ("{% for %}", "chat_template", "malformed"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "chat_template", "malformed"),
        ("{{ " + "(" * 3000 + ")" * 3000 + " }}", "chat_template", "malformed"),
        ("{{ " + "1+" * 9000 + "1 }}", "chat_template", "malformed"),
        ("{{ 'a' * 10**9 }}", "messages", "characters"),
        ("{{ messages.__class__.__mro__ }}", "messages", "unsafe"),
        ("{% include '/etc/passwd' %}", "messages", "loader"),
        ("x" * 70_000, "chat_template", "65536"),
        ("", "chat_template", "at least 1"),
    ],
)
def test_a_template_stays_in_the_sandbox(trusting: str, template: str, param: str, words: str) -> None:
    named, message = refusal(ask(trusting, messages=USER, chat_template=template))
    assert named == param, message
    assert words in message


def test_a_template_takes_no_other_requests_time(trusting: str) -> None:
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{trusting}/v1/chat/completions", json={"messages": USER, "chat_template": slow}, timeout=0.3)
    assert ask(trusting, messages=USER, chat_template=TEMPLATE.replace("{{ note }}", "")).status_code == 200
