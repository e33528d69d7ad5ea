"""Tools, calls and results as plain text, for chat templates that know none of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_HEAD = "You can call these functions. Each line describes one in JSON:"
_TAIL = (
    "To call functions, answer with a JSON list of calls and nothing else: "
    '[{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}}]\n'
    "The results come in the next message. If you need no function, answer in plain text."
)

Messages = list[dict[str, Any]]  # as `template_messages` returns them


def tools_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that describes the tools to the model.

    Args:
        tools: as templates get them.
    """
    return "\n".join([_HEAD, *(orjson.dumps(tool["function"]).decode() for tool in tools), "", _TAIL])


def with_tools(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> Messages:
    """The tools stand at the end of the system message. Where there is none they stand before the first user's message:
    not every template takes a system message."""
    prompt = tools_prompt(tools)
    if messages[0]["role"] in ("system", "developer"):
        return [_joined(messages[0], after=prompt), *messages[1:]]
    place = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": prompt}, *messages]
    return [*messages[:place], _joined(messages[place], before=prompt), *messages[place + 1 :]]


def with_calls_as_text(messages: Messages, *, results_too: bool) -> tuple[Messages, list[int]]:
    """Earlier calls become the text of the assistant's message.

    Args:
        results_too: their results become a user's message, joined with a user's message behind it: many templates
            want the two roles to alternate.

    Returns:
        The messages, and for each the position that it had, or its first part.
    """
    found: Messages = []
    positions: list[int] = []
    after_result = False
    for position, message in enumerate(messages):
        is_result = results_too and message["role"] == "tool"
        if is_result:
            message = _result(message)
        elif message.get("tool_calls"):
            message = _joined(message, after=_calls_text(message["tool_calls"]))
            del message["tool_calls"]
        if after_result and message["role"] == "user":
            found[-1] = _followed(found[-1], message)
        else:
            found.append(message)
            positions.append(position)
        after_result = message["role"] == "user" and (is_result or after_result)
    return found, positions


def _calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """In the form that the prompt asks for."""
    functions = [call["function"] for call in calls]
    texts = []
    for function in functions:
        name, arguments = json.dumps(function["name"], ensure_ascii=False), function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        texts.append(f'{{"name": {name}, "arguments": {text}}}')
    return f"[{', '.join(texts)}]"


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    name = message.get("name")
    before = f"Result of {name}:" if isinstance(name, str) else "Result:"
    return _joined({"role": "user", "content": message["content"]}, before=before, gap="\n")


def _followed(message: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Two messages as one; the contents are of the same form."""
    first, second = message["content"], by["content"]
    content = f"{first}\n\n{second}" if isinstance(first, str) else [*first, *second]
    return {**message, "content": content}


def _joined(message: Mapping[str, Any], *, before: str = "", after: str = "", gap: str = "\n\n") -> dict[str, Any]:
    """A message with text around its own."""
    content = message.get("content", "")
    if isinstance(content, str):
        content = gap.join(part for part in (before, content, after) if part)
    else:
        content = [*_parts(before), *content, *_parts(after)]
    return {**message, "content": content}


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []
