"""The messages of a chat request, tool calls and their results included, as templates get them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palladio.http.wire.body import JsonMeter, read_json
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError

HISTORY_VALUES = 300_000  # that the arguments of all calls together may hold, as json_cost counts them


class ToolHistory:
    """Reads the messages of a conversation in their order.

    Args:
        arguments_as_text: the template takes the arguments of calls as JSON text; else as an object.
    """

    def __init__(self, *, arguments_as_text: bool) -> None:
        self._as_text = arguments_as_text
        self._meter = JsonMeter(HISTORY_VALUES)
        self._names: dict[str, str] = {}  # of calls, by id
        self._last_id: str | None = None

    def convert(self, message: dict[str, Any], path: str) -> None:
        """Changes a message, which has no nulls, in place.

        - `tool_calls[].function.arguments`, a JSON string on the wire, becomes what the template takes;
        - `function_call` and messages with role function become what replaced them;
        - a tool's message gets the `name` of the function that was called.

        Raises:
            InvalidRequestError: a call is malformed; `param` is its path.
        """
        if "function_call" in message and "tool_calls" not in message:
            call = {"id": f"call_{path.rpartition('.')[2]}", "type": "function", "function": message["function_call"]}
            del message["function_call"]
            message["tool_calls"] = self._calls([call], f"{path}.function_call")
        elif message.get("tool_calls") == []:
            del message["tool_calls"]  # some templates only look whether it is there
        elif "tool_calls" in message:
            message["tool_calls"] = self._calls(message["tool_calls"], f"{path}.tool_calls")
        if message["role"] == "function":
            message["role"] = "tool"
            if self._last_id is not None:
                message.setdefault("tool_call_id", self._last_id)
        if message["role"] == "tool" and isinstance(message.get("tool_call_id"), str):
            name = self._names.get(message["tool_call_id"])
            if name is not None:
                message.setdefault("name", name)

    def _calls(self, calls: object, path: str) -> list[dict[str, Any]]:
        parsed: list[dict[str, Any]] = []
        for position, call in enumerate(typed(calls, list, path, "a list")):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                message, where = "{call} must have a function with a name", f"{path}.{position}"
                raise InvalidRequestError.of(message, param=f"{where}.function", fields={"call": where})
            arguments = self._arguments(function.get("arguments"), f"{path}.{position}.function.arguments")
            parsed.append({**call, "function": {**function, "arguments": arguments}})
            if isinstance(call.get("id"), str):
                self._names[call["id"]] = function["name"]
                self._last_id = call["id"]
        return parsed

    def _arguments(self, given: object, path: str) -> dict[str, Any] | str:
        values: object = given
        if isinstance(given, str) and given.strip():
            values = read_json(given, param=path, meter=self._meter)
        elif given is None or isinstance(given, str):
            values = {}
        arguments = typed(values, dict, path, "a JSON object")
        if not self._as_text:
            return arguments
        return given if arguments and isinstance(given, str) else json.dumps(arguments, ensure_ascii=False)


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
