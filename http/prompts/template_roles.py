"""Which messages a chat template writes, by their role, and in which form it takes their content. To find out, the
template is rendered with a mark in place of each content."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from palladio.runtime.interface.errors import InvalidRequestError, RenderLimitError

_ROLES = ("user", "assistant", "system", "tool")
_OTHER_NAMES = {"human": "user", "client": "user", "model": "assistant", "bot": "assistant", "ai": "assistant"}
# See _mark; as a part where the template wrote a list as Python or JSON writes it.
_MARK = re.compile(r"""(?P<part>['"]text['"]: ?['"])?contentofmessage(?P<position>\d{1,9})end""")

Render = Callable[[list[dict[str, Any]]], str]


class Kind(NamedTuple):
    """What decides whether a template writes a message, and how.

    Attributes:
        template: its text.
        is_later: a system message that is not the first message: many templates write the first one only.
        is_list: its content is a list of parts; else a string.
        has_calls: templates may leave out other content of an assistant's message with calls.
        has_tools: the request has tools.
    """

    template: str
    role: str
    is_later: bool
    is_list: bool
    has_calls: bool
    has_tools: bool


def find_forms(
    messages: Sequence[Mapping[str, Any]],
    positions: Sequence[int],
    unknown: Mapping[int, Kind],
    known: Mapping[Kind, bool],
    kinds: Mapping[int, Kind],
    render: Render,
) -> dict[Kind, bool]:
    """For each unknown kind, whether the template takes its content in the other form. Nothing is found where the
    template refuses the conversation: rendering will say why.

    Args:
        messages: as the template is to get them; positions: of each in the request.
        unknown: of messages, by position; known: what is known of the others; kinds: of all.
        render: messages → prompt.

    Raises:
        InvalidRequestError: the template writes no message of some kind, so it would be lost.
        RenderLimitError: rendering takes too long.
    """
    marked = [
        _marked(message, position) if position in kinds else dict(message) for position, message in enumerate(messages)
    ]
    fixed = [
        in_other_form(message) if position in kinds and known.get(kinds[position]) else message
        for position, message in enumerate(marked)
    ]
    plain = _render(fixed, render)
    written = {} if plain is None else _written(plain, unknown)
    if all(written.get(kind) == "as text" for kind in unknown.values()):
        return dict.fromkeys(unknown.values(), False)
    others = [
        in_other_form(message) if position in unknown and written.get(unknown[position]) != "as text" else message
        for position, message in enumerate(fixed)
    ]
    other = _render(others, render)
    changed = {} if other is None else _written(other, unknown)
    if plain is None and set(changed.values()) != {"as text"}:
        return {}
    found: dict[Kind, bool] = {}
    for position, kind in unknown.items():
        found[kind] = written.get(kind) != "as text" and changed.get(kind) == "as text"
        is_optional = kind.has_calls and kind.role == "assistant"
        if kind not in written and kind not in changed and not is_optional:
            raise _lost(positions[position], kind)
    return found


def _render(messages: list[dict[str, Any]], render: Render) -> str | None:
    """None: the template refuses them."""
    try:
        return render(messages).casefold()
    except RenderLimitError:
        raise
    except InvalidRequestError:
        return None


def _mark(position: int) -> str:
    """Letters and digits alone, which no template changes but for their case."""
    return f"contentofmessage{position}end"


def _marked(message: Mapping[str, Any], position: int) -> dict[str, Any]:
    mark = _mark(position)
    return {**message, "content": _parts(mark) if isinstance(message.get("content"), list) else mark}


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def in_other_form(message: Mapping[str, Any]) -> dict[str, Any]:
    """With parts in place of a string, or a string in place of parts."""
    content = message["content"]
    is_list = isinstance(content, list)
    return {**message, "content": " ".join(part["text"] for part in content) if is_list else _parts(content)}


def _written(text: str, kinds: Mapping[int, Kind]) -> dict[Kind, str]:
    """Return how each kind that is in the text is written: as text, or inside a list that the template wrote whole."""
    is_part: dict[int, bool] = {}
    for match in _MARK.finditer(text):  # all in one pass: conversations have thousands of messages
        position = int(match["position"])
        is_part[position] = is_part.get(position, False) or match["part"] is not None
    found: dict[Kind, str] = {}
    for position, kind in kinds.items():
        if position in is_part and (not is_part[position] or kind not in found):
            found[kind] = "as a part" if is_part[position] else "as text"
    return found


def _lost(position: int, kind: Kind) -> InvalidRequestError:
    role = kind.role
    meant = _OTHER_NAMES.get(role.lower(), role.lower())
    if meant in _ROLES and meant != role:
        hint = f"did you mean {meant!r}?"
    elif kind.is_later:
        hint = "of this role it takes the first message alone: put the text there, or into a message of the user"
    elif role in ("system", "developer"):
        hint = "put the text into a message of the user, or start the server with a --chat-template that writes it"
    elif role in _ROLES:
        hint = "start the server with a --chat-template that writes it"
    else:
        hint = f"use {', '.join(_ROLES[:-1])} or {_ROLES[-1]}"
    return InvalidRequestError.of(
        "{param}: this message would be lost, because the chat template does not write one with role {role!r} into the "
        "prompt here; {hint}",
        param=f"messages.{position}.role",
        role=role[:100],
        hint=hint,
        code="unsupported_parameter",
    )
