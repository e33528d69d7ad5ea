"""The messages of a chat as templates get them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palladio.http.prompts.template_calls import CallForms
from palladio.http.prompts.template_roles import Kind, Render, find_forms, in_other_form
from palladio.http.prompts.tool_history import ToolHistory
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError

ContentFormat = Literal["string", "openai"]

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def template_messages(
    messages: Sequence[Mapping[str, Any]],
    content_format: ContentFormat,
    *,
    knows_developer: bool,
    call_forms: CallForms = CallForms(),  # noqa: B008 (frozen)
    tests_null: bool = False,
    takes_one_text: bool = False,
) -> list[dict[str, Any]]:
    """Checks the messages and gives them the form that templates expect.

    - content parts are joined by a space, as SGLang does, unless the template takes parts itself;
    - null content becomes "", or is left out of messages with tool calls if the template `tests_null`;
    - tool calls and their results: see ToolHistory;
    - `reasoning` becomes `reasoning_content`, the name that templates know; with calls, content becomes the end of it
      if the template `takes_one_text` there;
    - `developer` becomes `system` where the template has no developer role;
    - other keys are passed on: the template may read them.

    Raises:
        InvalidRequestError: a message is malformed; `param` is its path.
    """
    prepared: list[dict[str, Any]] = []
    history: ToolHistory | None = None
    for position, message in enumerate(messages):
        path = f"messages.{position}"
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequestError.of("{param} must be a non-empty string", param=f"{path}.role")
        kept = {key: value for key, value in message.items() if value is not None and key != "prefix"}
        if role == "developer" and not knows_developer:
            kept["role"] = "system"
        if "content" not in kept and role not in ("assistant", "tool", "function"):
            raise InvalidRequestError.of("{param} is missing", param=f"{path}.content")
        kept["content"] = _content(kept.get("content", ""), content_format, f"{path}.content")
        if isinstance(kept.get("reasoning"), str):
            kept.setdefault("reasoning_content", kept.pop("reasoning"))
        if role in ("tool", "function") or "tool_calls" in kept or "function_call" in kept:
            history = history or ToolHistory(call_forms)
            history.convert(kept, path)
        if takes_one_text and kept.get("tool_calls") and kept["content"] and kept.get("reasoning_content"):
            kept |= {"reasoning_content": f"{kept['reasoning_content']}\n{kept['content']}", "content": ""}
        if tests_null and kept.get("tool_calls") and not kept["content"]:
            del kept["content"]
        prepared.append(kept)
    return prepared


MAX_KINDS = 256  # of messages that one object remembers; others are looked at again with each conversation
_MAX_ROLE = 64  # characters of a role that is remembered


class MessageForms:
    """Gives messages the form of content that a template takes, and finds messages that it would leave out. Remembers
    what it has found, so that most conversations are rendered once. Safe to use from several threads, which find the
    same."""

    def __init__(self) -> None:
        self._changed: dict[Kind, bool] = {}  # kind → its content is given in the other form

    def fit(
        self,
        messages: list[dict[str, Any]],
        positions: Sequence[int],
        template: str,
        render: Render,
        *,
        has_tools: bool,
    ) -> list[dict[str, Any]]:
        """The messages, each with its content as a string or as a list of parts.

        Args:
            messages: as `template_messages` has them, or rewritten.
            positions: of each in the request, which errors name.
            render: messages → prompt.

        Raises:
            InvalidRequestError: the template writes no message of some role, so it would be lost.
            RenderLimitError: rendering takes too long.
        """
        kinds: dict[int, Kind] = {}
        for position, message in enumerate(messages):
            content, role = message.get("content"), message["role"]
            if content or (message.get("tool_calls") and role != "assistant"):
                is_later = position > 0 and role in ("system", "developer")
                forms = isinstance(content, list), bool(message.get("tool_calls")), has_tools
                kinds[position] = Kind(template, role, is_later, *forms)
        known = {kind: self._changed[kind] for kind in set(kinds.values()) if kind in self._changed}
        unknown = {position: kind for position, kind in kinds.items() if kind not in known}
        if unknown:
            found = find_forms(messages, positions, unknown, known, kinds, render)
            for kind, is_changed in found.items():
                if len(self._changed) < MAX_KINDS and len(kind.role) <= _MAX_ROLE:
                    self._changed[kind] = is_changed
            known |= found
        if not any(known.values()):
            return messages
        return [
            in_other_form(message) if message.get("content") and known.get(kinds[position]) else message
            for position, message in enumerate(messages)
        ]


def continues_final_message(
    messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool | None, continue_final_message: bool | None
) -> bool:
    """Whether the last assistant message is to be continued, by the request's field or the message's own `prefix`.

    Raises:
        InvalidRequestError: there is no such message, or a new one is asked for as well.
    """
    last = messages[-1]
    for position, message in enumerate(messages):
        prefix = message.get("prefix")
        if prefix is not None and not isinstance(prefix, bool):
            raise InvalidRequestError("prefix must be true or false", param=f"messages.{position}.prefix")
        if prefix and (message is not last or message.get("role") != "assistant"):
            raise InvalidRequestError(
                "prefix is only for the last message, with role assistant", param=f"messages.{position}.prefix"
            )
    field = "continue_final_message" if continue_final_message else f"messages.{len(messages) - 1}.prefix"
    if not continue_final_message and not last.get("prefix"):
        return False
    if last.get("role") != "assistant":
        raise InvalidRequestError.of("{param} needs a last message with role assistant", param=field)
    if add_generation_prompt:
        raise InvalidRequestError.of(
            "{param} continues the last message, add_generation_prompt starts a new one; give one", param=field
        )
    return True


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a checked message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text") or part.get("refusal") or "") for part in content)


def _content(content: object, content_format: ContentFormat, path: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    parts = typed(content, list, path, "a string or a list of content parts")
    texts = [_part_text(part, f"{path}.{position}") for position, part in enumerate(parts)]
    return " ".join(texts) if content_format == "string" else [{"type": "text", "text": text} for text in texts]


def _part_text(part: object, path: str) -> str:
    fields = typed(part, dict, path, "an object with a type")
    kind = fields.get("type")
    if kind not in _TEXT_PARTS:
        raise InvalidRequestError(
            f"not supported yet: content parts of type {kind!r}; this server takes text",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return typed(fields.get("refusal" if kind == "refusal" else "text"), str, f"{path}.text", "a string")
