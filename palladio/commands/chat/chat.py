"""`palladio chat --base-url URL`: a chat in the terminal with any server that speaks OpenAI's API."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import make_parser
from palladio.load.http_client import HttpClient, first_model
from palladio.runtime.interface.config.user_dirs import user_data_dir
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.terminal.chat_loop import ChatLoop, line_editing
from palladio.terminal.conversation import Conversation
from palladio.terminal.screen import Screen
from palladio.terminal.settings import SettingError, Settings


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "chat",
        "Chats in the terminal with a server that speaks OpenAI's API. In the chat, /help lists its commands.",
        [
            "palladio chat                                           # the server on this machine's port 30000",
            "palladio chat --base-url https://host/v1 --api-key KEY --model NAME",
            "palladio chat --set temperature=0 --system 'Answer in French.'",
            "echo 'Why is the sky blue?' | palladio chat             # one answer, on standard output",
        ],
        {1: "no answer, or there is no such server"},
    )
    found.add_argument("--base-url", default="http://127.0.0.1:30000/v1", help="(default: %(default)s)")
    found.add_argument("--api-key", help="(default: OPENAI_API_KEY)")
    found.add_argument("--model", default="", help="(default: the first one of /v1/models)")
    add_chat_flags(found)
    return found


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `chat` and `run` share."""
    parser.add_argument("--system", default="", metavar="TEXT", help="the system prompt")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as of /set")
    parser.add_argument("--prompt", metavar="TEXT", help="ask only this, print the answer and end")
    parser.add_argument("--verbose", action="store_true", help="tokens and seconds under each answer")


def chat(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    key = args.api_key or environment.get("OPENAI_API_KEY")
    try:
        settings = read_settings(args)
        model = args.model or asyncio.run(_first_model(HttpClient(args.base_url, key)))
    except PalladioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    conversation = Conversation(model, args.system, settings)
    return talk(lambda: HttpClient(args.base_url, key), conversation, args.prompt, environment)


def read_settings(args: argparse.Namespace) -> Settings:
    """
    Raises:
        ConfigError: a --set makes no sense.
    """
    settings = Settings().set("verbose", "on") if args.verbose else Settings()
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write NAME=VALUE, such as temperature=0.7")
        try:
            settings = settings.set(name, value)
        except SettingError as error:
            raise ConfigError(f"--set {text}: {error}") from error
    return settings


def talk(
    connect: Callable[[], HttpClient],
    conversation: Conversation,
    prompt: str | None,
    environment: Mapping[str, str],
    is_alive: Callable[[], bool] = lambda: True,
) -> int:
    """The chat itself; without a terminal, standard input is one message. Returns the exit code."""
    screen = Screen.of_process("NO_COLOR" in environment)
    loop = ChatLoop(connect, conversation, screen, is_alive)
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        print("error: there is no message: give --prompt TEXT, or write one to standard input", file=sys.stderr)
        return 2
    if prompt is not None:
        return loop.say(prompt)
    screen.note(f"Chat with {conversation.model}. /help lists commands, /bye ends.")
    folder = user_data_dir(environment)
    with line_editing(None if folder is None else Path(folder) / "chat_history"):
        return loop.run()


async def _first_model(client: HttpClient) -> str:
    async with client:
        return await first_model(client)
