"""Conversations, and how they are written: exactly as chat_template.jinja writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALL_HELP = 'To call one, answer <tool_call>\n{"name": "its name", "arguments": {}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Turn:
    """A question of one side and the other's answer.

    Attributes:
        user: the message.
        answer: the text for the model to write.
        thought: text before the answer, if thinking is on.
    """

    user: str
    answer: str
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation.

    Attributes:
        turns: in order.
        system: the system message.
        tools: in OpenAI's form.
        thinking: whether the last turn thinks.
    """

    turns: tuple[Turn, ...]
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False

    def pieces(self) -> list[tuple[str, bool]]:
        """The text, cut where the model begins and ends to write: each piece with whether it is learnt."""
        pieces = []
        head = self.system or ""
        if self.tools:
            head = "\n\n".join([*([head] if head else []), describe_tools(self.tools)])
        before = f"<|im_start|>system\n{head}<|im_end|>\n" if head else ""
        for number, turn in enumerate(self.turns, start=1):
            thinks = self.thinking and number == len(self.turns)
            before += f"<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n"
            before += "<think>\n" if thinks else ""
            thought = f"{turn.thought}\n</think>\n" if thinks else ""
            pieces += [(before, False), (f"{thought}{turn.answer}<|im_end|>", True)]
            before = "\n"
        return pieces

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that a client sends to get the last turn's answer."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages[:-1]


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Describe tools as the template does: a line each. Names have no space before them, so they are the same tokens
    here and in a call."""
    return "\n".join(["You can call these tools:", *map(_describe, tools), CALL_HELP])


def _describe(tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    properties = function.get("parameters", {}).get("properties", {})
    fields = ",".join(f"{name}:{_kind(schema)}" for name, schema in properties.items())
    return f"{function['name']}({fields}) {function.get('description', '')}"


def _kind(schema: Mapping[str, Any]) -> str:
    return "|".join(map(str, schema["enum"])) if "enum" in schema else str(schema.get("type", "any"))


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def write_result(content: str) -> str:
    """A tool's answer as the model reads it, in a message of the user."""
    return f"<tool_response>\n{content}\n</tool_response>"
