"""The chat in a terminal, with a server that says what it is told."""

import io
from collections.abc import Callable, Iterator

import pytest

from palladio.load.http_client import HttpClient
from palladio.terminal.chat_loop import ChatLoop, read_message
from palladio.terminal.conversation import Conversation
from palladio.terminal.screen import Screen, printable
from palladio.terminal.settings import SettingError, Settings
from tests.fake_openai import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


class Chat:
    """A loop, and what it shows."""

    def __init__(self, url: str, *, styled: bool = False, screen: type[Screen] = Screen) -> None:
        self.out, self.notes = io.StringIO(), io.StringIO()
        self.conversation = Conversation("m")
        shown = screen(self.out, self.notes, styled=styled)
        self.loop = ChatLoop(lambda: HttpClient(url), self.conversation, shown)

    def said(self) -> tuple[str, str]:
        found = self.out.getvalue(), self.notes.getvalue()
        for stream in (self.out, self.notes):
            stream.seek(0)
            stream.truncate()
        return found


def test_a_conversation_goes_on(server: FakeServer) -> None:
    chat = Chat(server.url)
    chat.loop.obey("/system", '"Be short."')
    chat.loop.obey("/set", "temperature 0.5")
    chat.loop.obey("/set", "think off")
    chat.loop.obey("/set", "verbose on")
    assert chat.said() == ("", "System prompt: Be short.\ntemperature is 0.5\nthink is off\nverbose is on\n")
    assert chat.loop.say("One") == 0
    answer, notes = chat.said()
    assert answer == "Hello\n"
    assert notes.startswith("(2 tokens in ")
    chat.loop.say("Two")
    first, second = server.asked
    assert [message["content"] for message in first["messages"]] == ["Be short.", "One"]
    assert [message["content"] for message in second["messages"]] == ["Be short.", "One", "Hello", "Two"]
    assert (first["temperature"], first["chat_template_kwargs"]) == (0.5, {"enable_thinking": False})
    assert "verbose" not in first
    chat.loop.obey("/retry", "")
    assert server.asked[2] == second
    chat.loop.obey("/clear", "")
    chat.loop.say("Three")
    assert [message["content"] for message in server.asked[3]["messages"]] == ["Be short.", "Three"]


def test_errors_are_told_and_the_message_may_be_asked_again(server: FakeServer) -> None:
    chat = Chat(server.url)
    server.status, server.body = 400, {"error": {"message": "too long"}}
    assert chat.loop.say("One") == 1
    assert chat.said() == ("", "error: HTTP 400: too long\n")
    assert chat.conversation.turns == []
    server.status, server.break_after = 200, 1
    assert chat.loop.say("Two") == 1
    assert chat.said() == ("Hel\n", f"error: {server.url}/v1 does not answer: it broke off\n")
    assert chat.conversation.turns[-1] == {"role": "assistant", "content": "Hel"}


def test_ctrl_c_stops_the_answer_and_tells_the_server(server: FakeServer) -> None:
    class Interrupted(Screen):
        def answer(self, text: str, *, dim: bool = False) -> None:
            super().answer(text, dim=dim)
            if text == "lo":
                raise KeyboardInterrupt

    server.deltas, server.delay = [*server.deltas, *({"content": "."} for _ in range(1000))], 0.001
    chat = Chat(server.url, screen=Interrupted)
    assert chat.loop.say("One") == 130
    assert chat.said() == ("Hello\n", "(stopped)\n")
    assert chat.conversation.turns[-1] == {"role": "assistant", "content": "Hello"}
    assert server.left.wait(10), "the connection is closed, so that the server ends the request"


def test_thoughts_are_dim_and_hostile_text_is_harmless(server: FakeServer) -> None:
    server.deltas = [{"reasoning_content": "Hm."}, {"content": "Hi\x1b]0;title\x07\n"}, {"tool_calls": [
        {"function": {"name": "get", "arguments": "{}"}}]}]  # fmt: skip
    chat = Chat(server.url, styled=True)
    chat.loop.say("One")
    assert chat.said()[0] == "\033[2mHm.\033[0m\n\nHi\ufffd]0;title\ufffd\n→ get {}\n"
    plain = Chat(server.url)
    plain.loop.say("One")
    assert plain.said()[0] == "Hi\ufffd]0;title\ufffd\n→ get {}\n", "a pipe gets the answer alone"
    assert printable("a\r\nb\tc\x9b1m\u202e") == "a\nb\tc\ufffd1m\ufffd"


def test_commands_that_make_no_sense(server: FakeServer) -> None:
    chat = Chat(server.url)
    for command, rest, told in (
        ("/sett", "", "error: there is no command /sett; did you mean /set?"),
        ("/set", "temprature 1", "error: there is no setting temprature; did you mean temperature?"),
        ("/set", "top_p 3", "error: top_p must be in 0 … 1"),
        ("/set", "max_tokens many", "error: max_tokens must be a number, not 'many'"),
        ("/retry", "", "error: there is no message to ask again"),
    ):
        chat.loop.obey(command, rest)
        assert chat.said()[1].startswith(told)
    chat.loop.obey("/set", "")
    assert "temperature" in chat.said()[1]
    assert server.asked == []


def lines(*typed: str) -> Callable[[str], str]:
    left = list(typed)

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["Hi"], "Hi"),
        (["one \\", "two\\", "three"], "one \ntwo\nthree"),
        (['"""def f():', "    pass", '"""'], "def f():\n    pass"),
        (['"""one line"""'], "one line"),
        (["/set \\"], "/set \\"),
    ],
)
def test_messages_of_several_lines(typed: list[str], message: str) -> None:
    assert read_message(lines(*typed)) == message


def test_the_loop_ends_by_word_by_end_of_input_and_with_its_server(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(server.url)
    for typed in (["", "Hi", "/bye", "never"], ["Hi"]):
        monkeypatch.setattr("builtins.input", lines(*typed))
        assert chat.loop.run() == 0
    assert len(server.asked) == 2
    gone = ChatLoop(lambda: HttpClient(server.url), Conversation("m"), Screen(chat.out, chat.notes, styled=False), bool)
    monkeypatch.setattr("builtins.input", lines("Hi", "never"))
    assert gone.run() == 1


def test_settings_go_back_to_the_servers() -> None:
    settings = Settings().set("stop", '["a", "b"]').set("seed", "3").set("top-k", "5")
    assert settings.fields() == {"stop": ["a", "b"], "seed": 3, "top_k": 5}
    assert settings.set("seed", "").set("stop", "END").fields() == {"stop": ["END"], "top_k": 5}
    with pytest.raises(SettingError, match="on or off"):
        settings.set("think", "maybe")


def test_what_is_not_set_may_have_a_default_that_is_shown() -> None:
    settings = (
        Settings().set("seed", "3").set("temperature", "0").with_defaults({"temperature": 0.7, "min_p": 0.05, "x": 1})
    )
    assert settings.fields() == {"seed": 3, "temperature": 0, "min_p": 0.05}
    assert any(line.split()[:2] == ["min_p", "0.05"] for line in settings.lines())
    assert settings.set("min_p", "").fields() == {"seed": 3, "temperature": 0}
