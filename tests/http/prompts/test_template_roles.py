"""A message that the chat template would leave out is an error, and content has the form that the template takes."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.prompts.chat_messages import MAX_KINDS, MessageForms
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

KNOWN = (  # as Phi, Gemma or Llama 2 have it: other roles fall through
    "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content | trim }};{% elif m.role == 'assistant' %}"
    "A:{{ m.content.split('</think>')[-1] }};{% endif %}{% endfor %}"
)
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "4"}  # is joined to the user's message behind it
SYSTEM = {"role": "system", "content": "rules"}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.fixture
def chat(tmp_path: Path) -> Any:
    def make(template: str) -> ChatTemplate:
        path = tmp_path / "template.jinja"
        path.write_text(template)
        return ChatTemplate(HttpConfig(chat_template=str(path)))

    return make


@pytest.mark.parametrize(
    ("messages", "position", "words"),
    [
        ([{"role": "User", "content": "hi"}], 0, "did you mean 'user'?"),
        ([USER, ANSWER, {"role": "human", "content": "more"}], 2, "did you mean 'user'?"),
        ([USER, {"role": "model", "content": "yes"}, USER], 1, "did you mean 'assistant'?"),
        ([USER, ANSWER, RESULT, USER, ANSWER, {"role": "human", "content": "more"}], 5, "did you mean 'user'?"),
        ([USER, {"role": "critic", "content": "no"}], 1, "use user, assistant, system or tool"),
        ([SYSTEM, USER, {**SYSTEM, "content": "more rules"}, USER], 2, "it takes the first message alone"),
    ],
)
def test_a_message_that_would_be_lost_is_named(
    chat: Any, tokenizer: Tokenizer, messages: list, position: int, words: str
) -> None:
    known = chat(KNOWN)
    known.render(tokenizer, [SYSTEM, USER, ANSWER])  # what it has learned of these tells nothing of others
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as caught:
            known.render(tokenizer, messages)
        assert caught.value.param == f"messages.{position}.role"
        assert repr(messages[position]["role"]) in str(caught.value)
        assert words in str(caught.value)


def test_what_the_template_drops_rightly_is_no_error(chat: Any, tokenizer: Tokenizer) -> None:
    thinking = {"role": "assistant", "content": "<think>hm</think>yes", "reasoning_content": "hmm"}
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    beside = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    empty = {"role": "assistant", "content": ""}
    assert chat(KNOWN).render(tokenizer, [SYSTEM, USER, thinking, USER]) == "S:rules;U:hi;A:yes;U:hi;"
    assert chat(KNOWN).render(tokenizer, [USER, {"role": "critic", "content": ""}]) == "U:hi;"
    calls = "{% for m in messages %}{% if m.tool_calls %}C;{% else %}{{ m.content }};{% endif %}{% endfor %}"
    assert chat(calls).render(tokenizer, [USER, beside, empty, USER]) == "hi;C;;hi;"
    last = "{{ messages[-1].content | upper }}"  # a window, of a model that translates for example
    assert chat(last).render(tokenizer, [{**USER, "content": "one"}, {**USER, "content": "two"}]) == "TWO"
    merged = "{% for m in messages if m.role == 'user' %}{{ messages[0].content ~ m.content }}{% endfor %}"
    assert chat(merged).render(tokenizer, [SYSTEM, USER]) == "ruleshi"


@pytest.mark.parametrize("content", ["Let me look.", ""])
def test_calls_of_an_unknown_role_are_not_lost(chat: Any, tokenizer: Tokenizer, content: str) -> None:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "model", "content": content, "tool_calls": [call]}
    with pytest.raises(InvalidRequestError, match="role 'model'") as error:
        chat(KNOWN).render(tokenizer, [USER, message, USER])
    assert error.value.param == "messages.1.role"


def test_a_template_that_refuses_says_so_itself(chat: Any, tokenizer: Tokenizer) -> None:
    end = "{% endif %}{% endfor %}"
    strict = KNOWN.replace(end, "{% else %}{{ raise_exception('only two roles') }}" + end)
    with pytest.raises(InvalidRequestError, match="only two roles"):
        chat(strict).render(tokenizer, [USER, {"role": "critic", "content": "no"}])


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", [USER], "[hi]"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text + '!' }}{% endfor %}{% endfor %}", [USER], "hi!"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}<{{ m.content }}>{% else %}"
            "{% for p in m['content'] if p['type'] == 'text' %}[{{ p['text'] }}]{% endfor %}{% endif %}{% endfor %}",
            [{"role": "system", "content": PARTS}, USER, {"role": "user", "content": PARTS}],
            "<a b>[hi][a][b]",
        ),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}",
            [USER, {"role": "user", "content": PARTS}],
            "hi[a][b]",
        ),
    ],
    ids=["parts alone", "parts alone, strictly", "parts of users alone", "both"],
)
def test_content_has_the_form_that_the_template_takes(
    chat: Any, tokenizer: Tokenizer, template: str, messages: list, expected: str
) -> None:
    made = chat(template)
    assert [made.render(tokenizer, messages) for _ in range(2)] == [expected] * 2


def test_a_message_in_parts_is_continued(chat: Any, tokenizer: Tokenizer) -> None:
    parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert chat(parts).render(tokenizer, [USER, ANSWER], continue_final_message=True) == "[hi][yes"


def test_conversations_of_known_roles_are_rendered_once() -> None:
    rendered: list[list] = []

    def render(messages: list) -> str:
        rendered.append(messages)
        return "".join(message["content"] for message in messages)

    forms, text = MessageForms(), "a" * 100_000
    for _ in range(3):
        said = [{"role": "user", "content": text}, ANSWER]
        assert forms.fit(said, range(len(said)), "t", render, has_tools=False) == said
    assert len(rendered) == 1
    assert len(rendered[0][0]["content"]) < 50  # a mark, however long the message is
    forms.fit([USER, ANSWER], [0, 1], "another template", render, has_tools=False)
    assert len(rendered) == 2


@pytest.mark.timeout(30)  # a search of the whole prompt for each message takes minutes
def test_a_conversation_of_many_messages_is_searched_once() -> None:
    def render(messages: list) -> str:
        return "\n".join(message["content"] for message in messages)

    said = [USER, ANSWER] * 20_000
    assert MessageForms().fit(said, range(len(said)), "t", render, has_tools=False) == said


def test_what_is_remembered_is_bounded_and_no_thread_disturbs_another() -> None:
    forms, errors = MessageForms(), []

    def write(messages: list) -> str:
        return "".join(message["content"] for message in messages if message["role"] != "lost")

    def work(number: int) -> None:
        for turn in range(100):
            said = [{"role": f"r{number}-{turn}", "content": "x"}, {"role": "r" * 5000, "content": "x"}]
            if forms.fit(said, range(len(said)), "t", write, has_tools=False) != said:
                errors.append(said)
            try:
                forms.fit([*said, {"role": "lost", "content": "x"}], range(len(said) + 1), "t", write, has_tools=False)
                errors.append("lost")
            except InvalidRequestError:
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert MAX_KINDS <= len(forms._changed) < MAX_KINDS + 4
    assert max(len(kind.role) for kind in forms._changed) < 5000


@pytest.mark.parametrize(
    ("route", "fields", "beginning"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "User", "content": "hi"}]}, "messages.0.role: this message"),
        ("/v1/responses", {"input": [USER, SYSTEM]}, "input.1: this message"),
        ("/v1/messages", {"max_tokens": 5, "messages": [USER, SYSTEM, USER]}, "messages.1: this message"),
        ("/api/chat", {"model": "default", "messages": [USER, SYSTEM]}, "messages.1.role: this message"),
    ],
)
def test_each_route_names_its_own_field(
    serve: Any, tmp_path: Path, route: str, fields: dict[str, Any], beginning: str
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(KNOWN)
    answer = httpx.post(serve(chat_template=str(path), served_model_name=("default",)) + route, json=fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error if isinstance(error, str) else error["message"]).startswith(beginning)
