"""A conversation with a server, and the pieces of an answer as they come."""

import dataclasses
from collections.abc import AsyncGenerator
from typing import Any, Literal

from palladio.load.http_client import ClientError, HttpClient, describe_failure
from palladio.terminal.settings import Settings

PieceKind = Literal["thinking", "text", "tool", "finish", "usage"]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer.

    Attributes:
        text: for finish, the reason; for usage, the number of tokens of the answer.
    """

    kind: PieceKind
    text: str


@dataclasses.dataclass(slots=True)
class Conversation:
    """Attributes:
    model: as the server calls it.
    system: empty: none.
    turns: messages of user and assistant.
    """

    model: str
    system: str = ""
    settings: Settings = dataclasses.field(default_factory=Settings)
    turns: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def ask(self, message: str) -> None:
        self.turns.append({"role": "user", "content": message})

    def answered(self, text: str) -> None:
        """By the model; empty: not at all, so that the message may be asked again."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def take_back(self) -> str | None:
        """The last message, which is then gone with its answer; None: there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def forget(self) -> None:
        self.turns.clear()

    def instruct(self, system: str) -> None:
        self.system = system

    def change(self, setting: str, value: str) -> None:
        """Raises SettingError."""
        self.settings = self.settings.set(setting, value)

    def body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": self.model,
            "messages": [*system, *self.turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.settings.fields(),
        }


async def stream_answer(client: HttpClient, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
    """
    Raises:
        ClientError: the server refuses, fails, or is gone; the message says why.
    """
    async with client.stream("POST", "chat/completions", body) as response:
        if response.status != 200:
            raise ClientError(describe_failure(response.status, await response.read()))
        async for event in response.events():
            if "error" in event:
                found = event["error"]
                raise ClientError(str(found.get("message", found) if isinstance(found, dict) else found))
            for piece in _pieces(event):
                yield piece


def _pieces(event: dict[str, Any]) -> list[Piece]:
    found = []
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            found.append(Piece("thinking", thought))
        if delta.get("content"):
            found.append(Piece("text", delta["content"]))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            name = function.get("name")
            found.append(Piece("tool", f"{f'→ {name} ' if name else ''}{function.get('arguments') or ''}"))
        if choice.get("finish_reason"):
            found.append(Piece("finish", choice["finish_reason"]))
    if event.get("usage"):
        found.append(Piece("usage", str(event["usage"].get("completion_tokens", 0))))
    return found
