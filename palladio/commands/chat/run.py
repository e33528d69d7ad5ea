"""`palladio run MODEL`: starts a server for this user alone, and chats with it in the terminal."""

import argparse
import asyncio
import contextlib
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.cli.parsing import make_parser
from palladio.commands.chat.chat import add_chat_flags, read_settings, talk
from palladio.flags.default_model import DEFAULT_MODEL_NAME, PUBLISHED_MODEL_NAME, larger_model_hint
from palladio.load.http_client import ClientError, HttpClient, decode, first_model
from palladio.processes.child import python_path
from palladio.processes.early_signals import INTERRUPTED
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.terminal.conversation import Conversation
from palladio.terminal.settings import Settings

_ADDRESS = re.compile(r"Uvicorn running on (http\S+)")
_POLL = 0.1  # seconds
_END_SECONDS = 20.0  # that the server has to end


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "run",
        "Starts a private server, and chats with it in the terminal. In the chat, /help "
        "lists its commands; Ctrl-C stops an answer, Ctrl-D ends.",
        [
            "palladio run                                   # the small embedded model",
            f"palladio run {PUBLISHED_MODEL_NAME:<34}# a published one of 135M parameters, downloaded once",
            "palladio run Qwen/Qwen3-0.6B                   # from the hub",
            "palladio run /models/mine --tp-size 4 --set temperature=0.7",
            "palladio run default --prompt 'List 3 countries.'",
        ],
        {1: "the server could not start, or there was no answer"},
        usage="palladio run [MODEL] [flags] [flags of `palladio serve`]",
    )
    add_chat_flags(found)
    found.add_argument("--keep-log", action="store_true", help="keep the server's log, and say where it is")
    return found


def run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args, flags = parser().parse_known_args(argv)
    try:
        settings = read_settings(args)
        with _server(flags, environment, keep_log=args.keep_log) as server:
            return _chat(server, args, settings, environment)
    except PalladioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _chat(server: "_Server", args: argparse.Namespace, settings: Settings, environment: Mapping[str, str]) -> int:
    model, chosen = asyncio.run(server.wait_ready())
    if model == DEFAULT_MODEL_NAME:
        print(f"This is the embedded model. {larger_model_hint('run')}", file=sys.stderr, flush=True)
    if chosen:
        values = ", ".join(f"{name} {value}" for name, value in chosen.items())
        hint = (
            f"The model's files do not say how to sample; this chat begins with {values} (/set shows and changes them)."
        )
        print(hint, file=sys.stderr, flush=True)
    conversation = Conversation(model, args.system, settings.with_defaults(chosen))
    status = talk(server.client, conversation, args.prompt, environment, server.is_alive)
    if not server.is_alive():
        print(f"error: {server.last_words()}", file=sys.stderr)
        return 1
    return status


class _Server:
    """The child, as its log and its routes show it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, key: str) -> None:
        self._process = process
        self._log = log
        self._key = key
        self._url = ""

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def client(self) -> HttpClient:
        return HttpClient(self._url, self._key)

    def last_words(self) -> str:
        """Why it ended."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else f"the server ended: {' / '.join(lines[-3:])}"

    async def wait_ready(self) -> tuple[str, dict[str, Any]]:
        """Shows how far it is; returns the model's name, and how a chat is to sample where the model does not say.

        Raises:
            ConfigError: a flag or the checkpoint is wrong. ClientError: it could not start.
        """
        display, shown = ProgressDisplay(say=_say), time.monotonic()
        try:
            while True:
                if not self.is_alive():
                    kind = ConfigError if self._process.returncode == 2 else ClientError
                    raise kind(self.last_words())
                if not self._url:
                    found = _ADDRESS.search(self._log.read_text(encoding="utf-8", errors="replace"))
                    self._url = found[1] if found else ""
                elif await self._is_ready(display):
                    async with self.client() as client:
                        model = await first_model(client)
                        _, content = await client.ask("GET", "capabilities")
                        return model, decode(content).get("chat_sampling_params") or {}
                await asyncio.sleep(_POLL)
                if time.monotonic() - shown > 1.0:
                    shown = time.monotonic()
                    display.tick()
        finally:
            display.close()

    async def _is_ready(self, display: ProgressDisplay) -> bool:
        try:
            async with self.client() as client:
                status, content = await client.ask("GET", f"{client.root}/ready")
            state = decode(content)
        except ClientError:  # it ends; its exit code and its log say why
            return False
        if status == 200:
            return True
        if "phase" in state and state["total"]:
            display.update(LoadProgress(state["phase"], state["done"], state["total"], state.get("eta_seconds")))
        return False


@contextlib.contextmanager
def _server(flags: Sequence[str], environment: Mapping[str, str], *, keep_log: bool) -> Iterator[_Server]:
    """A server on a free port of this machine, with a key that only its files know; it ends with this process."""
    with tempfile.TemporaryDirectory(prefix="palladio-run-") as name:
        folder, key = Path(name), secrets.token_urlsafe(24)
        keys, log = folder / "keys", folder / "log"
        keys.touch(mode=0o600)
        keys.write_text(f"{key}\n", encoding="utf-8")
        ours = ["--host=127.0.0.1", "--port=0", f"--api-key-file={keys}"]
        command = [sys.executable, "-P", "-m", "palladio.commands.chat.run_worker", *flags, *ours]
        print("Starting the server …", file=sys.stderr, flush=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # when it closes, the server ends, however this process ended
                stdout=out,
                stderr=out,
                env={**environment, "PYTHONPATH": python_path()},
                start_new_session=True,  # Ctrl-C is meant for the chat
            )
        try:
            yield _Server(process, log, key)
        finally:
            _end(process)
            if keep_log:
                kept = Path(tempfile.mkstemp(prefix="palladio-run-", suffix=".log")[1])
                kept.write_bytes(log.read_bytes())
                print(f"The server's log: {kept}", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
