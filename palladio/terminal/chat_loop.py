"""The chat: reads messages and commands, asks the server, shows what it says."""

import asyncio
import contextlib
import difflib
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from palladio.load.http_client import ClientError, HttpClient
from palladio.terminal.conversation import Conversation, stream_answer
from palladio.terminal.screen import Screen
from palladio.terminal.settings import SettingError

HELP: Final = """Enter sends a message. A line that ends with \\ goes on; \"\"\" begins and ends several lines.
  /set [NAME [VALUE]]   show the settings, or change one; without a value the server decides again
  /system [TEXT]        show or change the system prompt; /system - removes it
  /clear                forget the conversation
  /retry                ask the last message again
  /help                 this
  /bye                  end (also Ctrl-D)
Ctrl-C stops an answer, not the program."""
_COMMANDS: Final = ("/set", "/system", "/clear", "/retry", "/help", "/bye")
_ENDS: Final = ("/bye", "/exit", "/quit")
_FENCE: Final = '"""'

Connect = Callable[[], HttpClient]


class ChatLoop:
    """
    Args:
        connect: makes a client of the server.
        is_alive: whether there is still a server to ask.
    """

    def __init__(
        self, connect: Connect, conversation: Conversation, screen: Screen, is_alive: Callable[[], bool] = lambda: True
    ) -> None:
        self._connect = connect
        self._conversation = conversation
        self._screen = screen
        self._is_alive = is_alive

    def run(self) -> int:
        """Until the user ends it; returns the exit code: 0, 1 if the server is gone."""
        while True:
            try:
                message = read_message(input)
            except EOFError:
                self._screen.note("")
                return 0
            except KeyboardInterrupt:
                self._screen.note("\n(/bye or Ctrl-D ends)")
                continue
            word = message.split(maxsplit=1)[0] if message.split() else ""
            if word in _ENDS:
                return 0
            if word.startswith("/"):
                self.obey(word, message.strip()[len(word) :].strip())
            elif word:
                self.say(message)
            if not self._is_alive():
                return 1

    def obey(self, command: str, rest: str) -> None:
        """A line that begins with a slash."""
        conversation, note = self._conversation, self._screen.note
        match command:
            case "/help" | "/?":
                note(HELP)
            case "/clear":
                conversation.forget()
                note("The conversation is forgotten.")
            case "/system":
                if rest:
                    conversation.instruct("" if rest == "-" else rest.strip('"'))
                note(f"System prompt: {conversation.system or 'none'}")
            case "/set":
                name, _, value = rest.partition(" ")
                try:
                    if name:
                        conversation.change(name, value.strip())
                        note(f"{name} is {value.strip() or 'what the server decides'}")
                    else:
                        note("\n".join(conversation.settings.lines()))
                except SettingError as error:
                    note(f"error: {error}")
            case "/retry":
                self._retry()
            case _:
                close = difflib.get_close_matches(command, _COMMANDS, n=1)
                hint = f"did you mean {close[0]}?" if close else "/help lists all"
                note(f"error: there is no command {command}; {hint} (a message may begin with a space and a slash)")

    def _retry(self) -> None:
        message = self._conversation.take_back()
        if message is None:
            self._screen.note("error: there is no message to ask again")
        else:
            self.say(message)

    def say(self, message: str) -> int:
        """Asks, and shows the answer; what the user has stopped stays in the conversation as far as it came.

        Returns:
            The exit code of a program that asks only this: 0, 1 for no answer, 130 after Ctrl-C.
        """
        conversation, screen = self._conversation, self._screen
        conversation.ask(message)
        said: list[str] = []
        status = 0
        try:
            asyncio.run(self._answer(said))
        except ClientError as error:
            screen.end_answer()
            screen.note(f"error: {error}")
            status = 1
        except KeyboardInterrupt:
            screen.end_answer()
            screen.note("(stopped)")
            status = 130
        conversation.answered("".join(said))
        return status

    async def _answer(self, said: list[str]) -> None:
        screen, body = self._screen, self._conversation.body()
        start, first, tokens = time.perf_counter(), 0.0, "0"
        async with self._connect() as client, contextlib.aclosing(stream_answer(client, body)) as pieces:
            async for piece in pieces:
                first = first or time.perf_counter() - start
                match piece.kind:
                    case "thinking":
                        screen.answer(piece.text, dim=True)
                    case "text":
                        said.append(piece.text)
                        screen.answer(piece.text)
                    case "tool":
                        screen.answer(piece.text)
                    case "finish" if piece.text == "length":
                        screen.end_answer()
                        screen.note("(cut off: max_tokens, or the context is full)")
                    case "usage":
                        tokens = piece.text
        screen.end_answer()
        if self._conversation.settings.verbose:
            seconds = time.perf_counter() - start
            rate = int(tokens) / seconds if seconds else 0.0
            screen.note(f"({tokens} tokens in {seconds:.2f} s, {rate:.1f} a second; the first after {first:.2f} s)")


def read_message(read_line: Callable[[str], str]) -> str:
    """One message or command, of one line or of several.

    Raises:
        EOFError: there are no more.
    """
    line = read_line(">>> ")
    if line.strip().startswith("/"):
        return line
    if line.lstrip().startswith(_FENCE):
        lines = [line.lstrip()[len(_FENCE) :]]
        while not lines[-1].rstrip().endswith(_FENCE):
            lines.append(read_line("... "))
        lines[-1] = lines[-1].rstrip()[: -len(_FENCE)]
        return "\n".join(lines).strip("\n")
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read_line("... "))
    return "\n".join(lines)


@contextlib.contextmanager
def line_editing(history: Path | None) -> Iterator[None]:
    """Arrow keys, and the lines of earlier chats, where the terminal and this Python have them.

    Args:
        history: a file for this user alone; None: none is kept.
    """
    if not sys.stdin.isatty() or importlib.util.find_spec("readline") is None:
        yield
        return
    readline: Any = importlib.import_module("readline")
    if history is not None:
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            readline.read_history_file(history)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        if history is not None:
            with contextlib.suppress(OSError):
                readline.write_history_file(history)
