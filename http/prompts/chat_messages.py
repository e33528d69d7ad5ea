"""OpenAI messages → the messages that a chat template gets."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
    arguments_as_text: bool = False,
    tells_null: bool = False,
) -> list[dict[str, Any]]:
    """Checks the messages and gives them the form that templates expect.

    - content parts are joined by a space, as SGLang does, unless the template takes parts itself;
    - null content becomes "", or is left out beside tool calls if the template `tells_null` from text;
    - tool calls and their results: see ToolHistory;
    - `reasoning` becomes `reasoning_content`, the name that templates know;
    - `developer` becomes `system` where the template has no developer role;
    - other keys are passed on: the template may read them.

    Raises:
        InvalidRequestError: a message is malformed; `param` is its path.
    """
    prepared: list[dict[str, Any]] = []
    history = ToolHistory(arguments_as_text=arguments_as_text)
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
        history.convert(kept, path)
        if tells_null and kept.get("tool_calls") and not kept["content"]:
            del kept["content"]
        prepared.append(kept)
    return prepared


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
