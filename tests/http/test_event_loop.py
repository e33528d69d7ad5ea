"""What takes long with large requests runs in a thread, so that streams keep flowing."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from palladio.http.chat import chat_run
from palladio.http.chat.chat_output import ChatMessage, MessagePlan
from palladio.http.chat.chat_plan import ChatPlan
from palladio.http.chat.chat_run import ChatRun
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import LONG_TEXT, Conversation, TextEncoder, encode_chat
from palladio.http.prompts.tools import ToolPlan
from palladio.http.reasoning.family import PromptEnd
from palladio.http.routes import routes_chat, routes_reasoning, routes_tools
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.output import CallOutput, openai_id
from palladio.runtime.interface.errors import RenderLimitError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.fake_engine import MODEL, FakeEngine

READ = ("qwen25", "pythonic", "gpt-oss", "deepseekv3")  # JSON, Python, channels, marks

USER = [{"role": "user", "content": "hi"}]
SLOW = [{"role": "user", "content": "slow"}]
LONG = "x" * LONG_TEXT
NAME = "f" * 128
TOOL = {"type": "function", "function": {"name": NAME}}
LARGE_TOOL = {"type": "function", "function": {"name": NAME, "description": LONG}}
LARGE_CHOICE = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL] * 60}}
CHAT = {"model": MODEL, "messages": USER, "max_tokens": 4}
CHAT_PATH = "/v1/chat/completions"
FORMAT: Any = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "place", "name", "small", "large"),
    [
        ("/separate_reasoning", routes_reasoning, "_separate", {"text": "x"}, {"text": LONG + "x"}),
        ("/parse_function_call", routes_tools, "_parse", {"text": "x"}, {"text": LONG + "x"}),
        (
            CHAT_PATH,
            ChatPlan,
            "write_grammar",
            CHAT | {"tools": [TOOL]},
            CHAT | {"tools": [TOOL], "tool_choice": LARGE_CHOICE},
        ),
        (
            "/tokenize",
            TextEncoder,
            "encode",
            {"messages": USER, "tools": [TOOL]},
            {"messages": USER, "tools": [LARGE_TOOL]},
        ),
        (
            CHAT_PATH,
            ToolPlan,
            "grammar_with",
            CHAT | {"response_format": FORMAT, "tools": [TOOL]},
            CHAT | {"response_format": FORMAT, "tools": [TOOL], "tool_choice": LARGE_CHOICE},
        ),
    ],
)
def test_large_requests(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, place: Any, name: str, small: dict, large: dict
) -> None:
    others = {
        "/separate_reasoning": {"reasoning_parser": "qwen3"},
        "/parse_function_call": {"tool_call_parser": "qwen25", "tools": [TOOL]},
    }
    small_thread, large_thread = (
        thread_of(place, name, monkeypatch, lambda body=body: http.post(path, json=body | others.get(path, {})))
        for body in (small, large)
    )
    assert small_thread != large_thread


def test_a_large_chat_is_tokenized_beside_the_threads_of_templates(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread renders it; another one, of which there are more, tokenizes it and writes its grammar."""
    # The grammar's size alone makes the second hop: a text of that length would not fit this engine.
    body = CHAT | {"messages": [USER[0] | {"note": LONG}], "tools": [TOOL], "tool_choice": LARGE_CHOICE}
    threads: list[int] = []

    with monkeypatch.context() as patch:
        for place, name in ((ChatTemplate, "render"), (TextEncoder, "encode"), (ChatPlan, "write_grammar")):
            patch.setattr(place, name, noting(getattr(place, name), threads))
        planning = thread_of(chat_run, "plan_chat", monkeypatch, lambda: http.post(CHAT_PATH, json=body))
    rendering, encoding, writing = threads
    assert encoding == writing
    assert len({planning, rendering, encoding}) == 3


@pytest.mark.parametrize(("place", "name"), [(ChatRun, "_read"), (routes_chat, "chat_choice")])
def test_long_answers(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    engine.reply = "Hello, " * 20
    body = CHAT | {"max_tokens": 100}
    one, many = (
        thread_of(place, name, monkeypatch, lambda n=n: http.post(CHAT_PATH, json=body | {"n": n})) for n in (1, 100)
    )
    assert one != many


def test_what_a_template_renders(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ChatTemplate(HttpConfig(chat_template="chatml"))
    encoder = TextEncoder(FakeEngine(tokenizer), bounded=True)
    threads: list[int] = []

    def render(*args: Any, seconds: float) -> str:
        threads.append(threading.get_ident())
        if args[1] == SLOW and seconds < 1:
            raise RenderLimitError("it takes longer than that")
        return "x"

    monkeypatch.setattr(chat, "render", render)

    async def leaves(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> bool:
        await encode_chat(chat, encoder, Conversation(messages, tools=tools))
        return threads.pop() != threading.get_ident()

    async def main() -> None:
        assert not await leaves(USER, [TOOL])
        assert await leaves(USER, [LARGE_TOOL])
        assert await leaves([*USER, {"role": "assistant", "tool_calls": [{"function": {"arguments": LONG}}]}])
        assert await leaves([{"role": "user", "content": LONG + "x"}])
        assert await leaves([{"role": "user", "content": [{"type": "text", "text": LONG}]}])
        assert await leaves([{"role": "user", "content": ""}] * 1000)
        assert await leaves(SLOW)

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", [name if name in READ else pytest.param(name, marks=pytest.mark.slow) for name in sorted(FORMATS)]
)
def test_the_time_of_reading_goes_with_the_length(name: str) -> None:
    """Four times the text takes about four times as long, not sixteen."""
    functions = {"f": Function("f", {"type": "object", "properties": {"a": {"type": "string"}}})}
    mark = FORMATS[name].syntax.trigger or "{"

    def read(count: int) -> None:
        parser = MessagePlan(ReasoningPlan(), PromptEnd(""), lambda: FORMATS[name].new_parser(functions)).new_parser()
        assert ChatMessage.read(parser, f"a {mark} b {{" * count).content

    read(100)
    limit = 10 * least_cpu_seconds(lambda: read(5_000)) + 0.2
    assert least_cpu_seconds(lambda: read(20_000), enough=limit) < limit


def test_many_pieces_are_joined_once() -> None:
    function = Function("f", {})

    def write() -> None:
        output = CallOutput({"f": function}, parallel=True, new_id=openai_id)
        for _ in range(100_000):
            output.content("a word ")
        output.begin("f")
        for _ in range(100_000):
            output.arguments("a word ")
        piece = output.piece()
        assert (len(piece.content), [len(call.arguments) for call in piece.calls]) == (699_999, [0, 700_000])

    assert least_cpu_seconds(write, enough=1) < 1


def thread_of(place: Any, name: str, monkeypatch: pytest.MonkeyPatch, send: Callable[[], httpx.Response]) -> int:
    """The thread in which the server calls this function."""
    threads: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(place, name, noting(getattr(place, name), threads))
        answer = send()
    assert answer.status_code == 200, answer.text
    return threads[0]


def noting(function: Callable[..., Any], threads: list[int]) -> Callable[..., Any]:
    """The same function, which adds its threads to the list."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return function(*args, **kwargs)

    return noted
