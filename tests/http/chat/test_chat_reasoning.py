"""Reasoning in chat completions, through the real app and the openai SDK."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.runtime.interface.request.grammar_spec import Thinking
from tests.fake_engine import EOS_ID, MODEL, FakeEngine

USER = [{"role": "user", "content": "9.11 and 9.8, which is greater?"}]
THOUGHT, ANSWER = "Okay, so 9.8 is 9.80.", "9.8 is greater. 🎉"
REPLY = f"<think>\n{THOUGHT}\n</think>\n{ANSWER}"

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
)
GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n"
TEMPLATES = {
    "qwen3": "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    "qwen3-thinking": "<think>\n",
    "deepseek-v3": "{% if thinking %}<think>{% else %}</think>{% endif %}",
    "kimi": "",
    "silent": "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}",
    "glm45": "{{ reasoning_effort }}{% if enable_thinking is false %}<think></think>{% endif %}",
    "gpt-oss": "{{ '' if reasoning_effort is undefined else 'Reasoning: ' + reasoning_effort }}<|start|>assistant",
}


@pytest.fixture
def connect(serve: Any, tmp_path: Path) -> Iterator[Any]:
    """A client of a server with a family's parser and a template in its format."""
    clients: list[openai.OpenAI] = []

    def start(name: str, **config: Any) -> openai.OpenAI:
        template = tmp_path / f"{name}.jinja"
        template.write_text(f"{TURNS}{GENERATION}{TEMPLATES[name]}{{% endif %}}", encoding="utf-8")
        url = serve(**{"chat_template": str(template), "reasoning_parser": name} | config)
        clients.append(openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0, timeout=20))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    known = {"n", "max_tokens", "logprobs", "reasoning_effort", "stop", "stream", "stream_options"}
    extra = {name: value for name, value in fields.items() if name not in known}
    given = {name: value for name, value in fields.items() if name in known}
    return client.chat.completions.create(model=MODEL, messages=USER, extra_body=extra, **given)


def follow(client: openai.OpenAI, **fields: Any) -> tuple[list[Any], Any]:
    """The chunks' choices, and the usage."""
    options = {"include_usage": True}
    chunks = list(ask(client, stream=True, stream_options=options, **fields))
    return [choice for chunk in chunks for choice in chunk.choices], chunks[-1].usage


def joined(choices: list[Any], index: int = 0) -> tuple[str, str]:
    """(reasoning, content) of a stream."""
    deltas = [choice.delta.model_dump() for choice in choices if choice.index == index]
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert reasoning == "".join(delta.get("reasoning") or "" for delta in deltas)
    return reasoning, "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize(
    ("family", "kwargs", "reply"),
    [
        ("qwen3", {"enable_thinking": True}, REPLY),
        ("qwen3-thinking", {}, f"{THOUGHT}\n</think>\n{ANSWER}"),
        ("deepseek-v3", {"thinking": True}, f"{THOUGHT}</think>{ANSWER}"),
        ("kimi", {}, f"◁think▷{THOUGHT}◁/think▷{ANSWER}"),
        (
            "gpt-oss",
            {},
            f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}",
        ),
    ],
)
def test_families(connect: Any, engine: FakeEngine, family: str, kwargs: dict[str, Any], reply: str) -> None:
    """The cells of SGLang's tutorial, streamed and not."""
    engine.reply = reply
    client = connect(family)
    response = ask(client, chat_template_kwargs=kwargs, separate_reasoning=True)
    message = response.choices[0].message
    assert (message.reasoning_content, message.reasoning, message.content) == (THOUGHT, THOUGHT, ANSWER)
    assert response.choices[0].finish_reason == "stop"
    choices, usage = follow(client, chat_template_kwargs=kwargs, separate_reasoning=True)
    assert joined(choices) == (THOUGHT, ANSWER)
    assert usage == response.usage
    assert 0 < usage.reasoning_tokens == usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


@pytest.mark.parametrize(
    ("family", "kwargs"),
    [("qwen3", {"enable_thinking": False}), ("deepseek-v3", {}), ("deepseek-v3", {"thinking": False})],
)
def test_turned_off_there_is_none(connect: Any, engine: FakeEngine, family: str, kwargs: dict[str, Any]) -> None:
    engine.reply = ANSWER
    client = connect(family)
    response = ask(client, chat_template_kwargs=kwargs)
    assert (response.choices[0].message.reasoning_content, response.choices[0].message.content) == (None, ANSWER)
    assert response.usage.reasoning_tokens == 0
    choices, usage = follow(client, chat_template_kwargs=kwargs)
    assert joined(choices) == ("", ANSWER)
    assert usage == response.usage


def test_auto_is_the_default_and_none_turns_it_off(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    assert ask(connect("qwen3", reasoning_parser="auto")).choices[0].message.reasoning_content == THOUGHT
    assert ask(connect("kimi", reasoning_parser="auto")).choices[0].message.content == REPLY
    message = ask(connect("qwen3", reasoning_parser="none"), separate_reasoning=True).choices[0].message
    assert (message.reasoning_content, message.content) == (None, REPLY)


def test_cut_off_inside(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    client = connect("qwen3")
    response = ask(client, max_tokens=8)
    choice = response.choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None
    assert choice.message.reasoning_content.startswith("Okay")
    assert response.usage.reasoning_tokens == response.usage.completion_tokens == 8
    choices, usage = follow(client, max_tokens=8)
    assert joined(choices) == (choice.message.reasoning_content, "")
    assert (choices[-1].finish_reason, usage) == ("length", response.usage)


def test_not_separated_the_text_is_as_it_came(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    client = connect("qwen3")
    response = ask(client, separate_reasoning=False)
    assert (response.choices[0].message.reasoning_content, response.choices[0].message.content) == (None, REPLY)
    choices, usage = follow(client, separate_reasoning=False)
    assert joined(choices) == ("", REPLY)
    assert usage == response.usage
    assert usage.reasoning_tokens == ask(client).usage.reasoning_tokens > 0


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_left_out(connect: Any, engine: FakeEngine, fields: dict[str, Any]) -> None:
    engine.reply = REPLY
    client = connect("qwen3")
    response = ask(client, **fields)
    assert (response.choices[0].message.reasoning_content, response.choices[0].message.content) == (None, ANSWER)
    choices, usage = follow(client, **fields)
    assert joined(choices) == ("", ANSWER)
    assert usage == response.usage
    assert usage.reasoning_tokens > 0


def test_in_one_piece(connect: Any, engine: FakeEngine) -> None:
    engine.reply = f"<think>a b c</think>{ANSWER}\n<think>d</think>!"
    choices, _ = follow(connect("qwen3"), stream_reasoning=False)
    reasoning = [choice.delta.reasoning for choice in choices if getattr(choice.delta, "reasoning", None)]
    assert reasoning == ["a b c", "d"]
    assert joined(choices) == ("a b cd", f"{ANSWER}\n!")
    engine.reply = "<think>" + THOUGHT
    choices, _ = follow(connect("qwen3"), stream_reasoning=False)
    assert [choice.delta.reasoning for choice in choices if getattr(choice.delta, "reasoning", None)] == [THOUGHT]


@pytest.mark.parametrize("interval", [1, 3])
def test_logprobs_and_ids_cover_every_token(connect: Any, engine: FakeEngine, interval: int) -> None:
    engine.reply = REPLY
    client = connect("qwen3", stream_interval=interval)
    choices, usage = follow(client, n=2, logprobs=True, return_token_ids=True)
    for index in (0, 1):
        assert joined(choices, index) == (THOUGHT, ANSWER)
        mine = [choice for choice in choices if choice.index == index]
        ids = [token_id for choice in mine for token_id in getattr(choice, "token_ids", None) or []]
        assert ids == [*engine.tokenizer.encode(REPLY, False), EOS_ID]
        tokens = [token for choice in mine if choice.logprobs for token in choice.logprobs.content]
        assert len(tokens) == len(ids)
    assert usage == ask(client, n=2).usage
    assert usage.reasoning_tokens == 2 * ask(client).usage.reasoning_tokens


def test_each_chunk_says_one_thing(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    choices, _ = follow(connect("qwen3"))
    assert (choices[0].delta.role, choices[0].delta.content) == ("assistant", "")
    for choice in choices[1:-1]:
        assert bool(choice.delta.content) != bool(choice.delta.reasoning_content)
        assert choice.finish_reason is None
    assert (choices[-1].delta.content, choices[-1].finish_reason) == (None, "stop")


def test_the_sdk_accumulates(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    with connect("qwen3").chat.completions.stream(model=MODEL, messages=USER) as stream:
        message = stream.get_final_completion().choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, ANSWER)


def test_running_usage(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(connect("qwen3"), stream=True, stream_options=options))
    counts = [chunk.usage.reasoning_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == counts[-2] > 5


def test_stop_string_while_reasoning(connect: Any, engine: FakeEngine) -> None:
    engine.reply = REPLY
    choice = ask(connect("qwen3"), stop="9.80").choices[0]
    assert (choice.message.reasoning_content, choice.message.content) == ("Okay, so 9.8 is ", None)
    assert (choice.finish_reason, choice.matched_stop) == ("stop", "9.80")


def test_continuing_inside(connect: Any, engine: FakeEngine) -> None:
    engine.reply = " see.</think>Yes."
    messages = [*USER, {"role": "assistant", "content": "<think>\nLet me"}]
    body = {"continue_final_message": True}
    message = (
        connect("qwen3").chat.completions.create(model=MODEL, messages=messages, extra_body=body).choices[0].message
    )
    assert (message.reasoning_content, message.content) == (" see.", "Yes.")


def prompt(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("family", "fields", "ending"),
    [
        ("qwen3", {"reasoning_effort": "none"}, "</think>\n\n"),
        ("qwen3", {"reasoning": {"effort": "none"}}, "</think>\n\n"),
        ("qwen3", {"thinking": False}, "</think>\n\n"),
        ("qwen3", {"thinking": {"type": "disabled"}}, "</think>\n\n"),
        ("qwen3", {"reasoning": {"enabled": False}}, "</think>\n\n"),
        ("qwen3", {"reasoning_effort": "high"}, "assistant\n"),
        ("deepseek-v3", {"reasoning_effort": "low"}, "<think>"),
        ("deepseek-v3", {"thinking": True, "reasoning": {"enabled": True}}, "<think>"),
        ("deepseek-v3", {"thinking": {"type": "enabled"}}, "<think>"),
        ("deepseek-v3", {}, "</think>"),
        ("gpt-oss", {"reasoning_effort": "low"}, "Reasoning: low<|start|>assistant"),
        ("gpt-oss", {"reasoning_effort": "minimal"}, "Reasoning: low<|start|>assistant"),
        ("gpt-oss", {"reasoning": {"effort": "xhigh"}}, "Reasoning: high<|start|>assistant"),
        ("gpt-oss", {"chat_template_kwargs": {"reasoning_effort": "high"}}, "Reasoning: high<|start|>assistant"),
        ("qwen3-thinking", {"thinking": True}, "<think>\n"),
        ("glm45", {"reasoning_effort": "low"}, "assistant\nlow"),
        ("glm45", {"reasoning_effort": "none"}, "assistant\n<think></think>"),
    ],
)
def test_what_turns_it_on_and_off(
    connect: Any, engine: FakeEngine, family: str, fields: dict[str, Any], ending: str
) -> None:
    ask(connect(family), **fields)
    assert prompt(engine).endswith(ending)


def test_the_servers_default_makes_way(connect: Any, engine: FakeEngine) -> None:
    client = connect("qwen3", default_chat_template_kwargs='{"enable_thinking": false}')
    ask(client)
    assert prompt(engine).endswith("</think>\n\n")
    ask(client, reasoning_effort="medium")
    assert prompt(engine).endswith("assistant\n")


@pytest.mark.parametrize(
    ("family", "fields", "param", "words"),
    [
        ("qwen3-thinking", {"thinking": False}, "thinking", "no way to turn reasoning off"),
        ("gpt-oss", {"reasoning_effort": "none"}, "reasoning_effort", "always reasons"),
        ("qwen3", {"thinking": True, "reasoning_effort": "none"}, "thinking", "contradict"),
        ("qwen3", {"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort", "contradict"),
        ("qwen3", {"thinking_token_budget": 5, "max_thinking_tokens": 6}, "max_thinking_tokens", "contradict"),
        ("qwen3", {"include_reasoning": True, "reasoning": {"exclude": True}}, "reasoning", "contradict"),
        ("qwen3", {"thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "thinking", "give one"),
        ("qwen3", {"thinking_token_budget": -1}, "thinking_token_budget", "≥ 0"),
        ("qwen3", {"reasoning_effort": "huge"}, "reasoning_effort", "'none'"),
        ("qwen3", {"thinking": {"type": "some"}}, "thinking.type", "enabled"),
        ("qwen3", {"reasoning": {"efort": "low"}}, "reasoning.efort", "did you mean effort"),
        ("qwen3", {"separate_reasoning": 1}, "separate_reasoning", "boolean"),
        ("none", {"thinking_token_budget": 5}, "thinking_token_budget", "--reasoning-parser"),
        ("none", {"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens", "--reasoning-parser"),
        ("none", {"thinking": True, "reasoning_effort": "low"}, "reasoning_effort", "--reasoning-parser"),
        ("none", {"thinking": True}, "thinking", "--reasoning-parser"),
    ],
)
def test_what_has_no_effect_is_refused(
    connect: Any, engine: FakeEngine, family: str, fields: dict[str, Any], param: str, words: str
) -> None:
    client = connect("qwen3", reasoning_parser="none") if family == "none" else connect(family)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            ask(client, stream=stream, max_completion_tokens=9, **fields)
        assert caught.value.param == param
    assert not engine.calls


def test_without_a_parser_what_asks_for_nothing_passes(connect: Any, engine: FakeEngine) -> None:
    client = connect("kimi", reasoning_parser="none")
    nothing = {"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True, "thinking": False}
    assert ask(client, reasoning_effort="none", **nothing).choices[0].message.content == "Hello, wörld 🎉!"


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_token_budget": 7},
        {"max_thinking_tokens": 7},
        {"thinking": {"type": "enabled", "budget_tokens": 7}},
        {"reasoning": {"max_tokens": 7}},
    ],
)
def test_a_budget_reaches_the_engine(connect: Any, engine: FakeEngine, fields: dict[str, Any]) -> None:
    start, end = (tuple(engine.tokenizer.encode(tag, False)) for tag in ("<think>", "</think>"))
    ask(connect("qwen3"), **fields)
    assert engine.calls[-1].params.thinking == Thinking(start, end, begun=False, budget=7)
    assert ask(connect("qwen3")).choices
    assert engine.calls[-1].params.thinking is None  # nothing to bound
    off = connect("qwen3", default_chat_template_kwargs='{"enable_thinking": false}')
    ask(off, thinking_token_budget=7)
    assert engine.calls[-1].params.thinking is None  # nothing to bound it for


JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}),
        ({"reasoning_effort": "none"}, {}),
        ({"thinking": {"type": "disabled"}}, {}),
        ({}, {"default_chat_template_kwargs": '{"enable_thinking": false}'}),
    ],
)
def test_off_is_off_whether_or_not_the_template_marks_it(
    connect: Any, engine: FakeEngine, fields: dict[str, Any], config: dict[str, Any]
) -> None:
    """The embedded model's template opens reasoning where it is on, and writes nothing where it is off."""
    client = connect("silent", reasoning_parser="qwen3", **config)
    ask(client, **JSON, **fields)
    assert engine.calls[-1].params.grammar is not None
    assert engine.calls[-1].params.thinking is None, "the grammar holds from the first token"
    ask(client, thinking_token_budget=7, **fields)
    assert engine.calls[-1].params.thinking.budget == 0  # type: ignore[attr-defined]
    ask(client, **JSON, chat_template_kwargs={"enable_thinking": True})
    assert engine.calls[-1].params.thinking.begun  # type: ignore[attr-defined]


def test_special_tokens_that_the_parser_needs_are_shown_to_it(
    connect: Any, engine: FakeEngine, monkeypatch: Any
) -> None:
    engine.reply = REPLY
    tags = set(engine.tokenizer.encode("<think></think>", False))
    monkeypatch.setattr(engine.tokenizer, "_special", engine.tokenizer._special | tags)
    client = connect("qwen3")
    message = ask(client).choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, ANSWER)
    assert set(engine.calls[-1].params.visible_special_ids) == tags
    assert ask(client, separate_reasoning=False).choices[0].message.content == REPLY


def test_history_gives_the_template_its_reasoning(connect: Any, engine: FakeEngine) -> None:
    client = connect("qwen3")
    for name in ("reasoning_content", "reasoning"):
        history = [*USER, {"role": "assistant", "content": "Yes.", name: "Hm."}, *USER]
        client.chat.completions.create(model=MODEL, messages=history)
        assert "Hm.Yes." in prompt(engine)


def test_raw_events(connect: Any, engine: FakeEngine) -> None:
    """The fields of each delta, as clients that read JSON see them."""
    engine.reply = "<think>Hm.</think>Yes."
    client = connect("qwen3")
    body = {"messages": USER, "stream": True}
    events = httpx.post(f"{client.base_url}chat/completions", json=body).text.split("\n\n")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-2]]
    assert deltas[0] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert {"content": None, "reasoning_content": "H", "reasoning": "H"} in deltas
    assert {"content": "Y", "reasoning_content": None} in deltas
    assert deltas[-1] == {"reasoning_content": None}
