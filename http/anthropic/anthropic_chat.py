"""A request to Anthropic's /v1/messages as the chat request that it comes to."""

from collections.abc import Mapping
from typing import Any

from palladio.http.anthropic.anthropic_messages import AnthropicConversation
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest, MessagesRequest
from palladio.http.wire.errors import THREAD_UNSUPPORTED
from palladio.http.wire.fields import FieldMap, WarningList, message_paths
from palladio.http.wire.protocol import check_tool_fields, screen
from palladio.http.wire.protocol_chat import ChatRequest, ThinkingOptions
from palladio.runtime.interface.errors import InvalidRequestError

SAME_NAME = (  # as for chat
    *("model", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "cache_salt", "priority", "timeout"),
    "chat_template_kwargs",
)
_PATHS: Mapping[str, str] = {  # of the chat request → of this one
    "tools.*.function.parameters": "tools.*.input_schema",
    "tools.*.function": "tools.*",
    "tool_choice.function": "tool_choice",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "continue_final_message": "messages",
}
_TOOL_FIELDS = ("name", "description", "input_schema", "type", "strict")
_EDITS = (
    "clear_thinking_",
    "clear_tool_uses_",
)  # of context_management, with a date: they save room, and may stay undone
_HINTS = ("cache_control", "eager_input_streaming")  # of tools: they change no token
_NEUTRAL: Mapping[str, object] = {"defer_loading": False, "allowed_callers": ["direct"], "input_examples": []}


class AnthropicChat:
    """A request's chat request.

    Attributes:
        chat: the same, as the chat route takes it.

    Args:
        warnings: unknown fields may pass with one.
        name: the request's id.

    Raises:
        InvalidRequestError: a field is malformed, or asks for what this server has not; `param` is its path.
    """

    def __init__(self, body: CountTokensRequest, warnings: WarningList, name: str | None = None) -> None:
        conversation = AnthropicConversation(body, warnings)
        self._paths = conversation.paths
        fields: dict[str, Any] = {name: value for name, value in body if name in SAME_NAME}
        fields |= {"messages": conversation.messages, "rid": name, "tools": _tools(body, warnings)}
        fields |= {"continue_final_message": True} if conversation.continues else {}
        fields |= _tool_choice(body, warnings) | _thinking(body)
        self._format_path, fields["response_format"] = _response_format(body)
        if body.output_config is not None and not (body.thinking is not None and body.thinking.type == "disabled"):
            fields["reasoning_effort"] = body.output_config.effort
        _check_context_management(body.context_management or {}, warnings)
        if isinstance(body, MessagesRequest):
            _check_thread(body)
            fields["stop"] = body.stop_sequences
        self.chat = ChatRequest(**fields)

    @property
    def names(self) -> FieldMap:
        """What the chat request's fields are in this one."""
        formats = {"response_format.json_schema": self._format_path, "response_format": self._format_path}
        return FieldMap(paths={**_PATHS, **formats}, wholes=message_paths("messages", self._paths))


def _tools(body: CountTokensRequest, warnings: WarningList) -> list[dict[str, Any]] | None:
    if body.tools is None:
        return None
    tools: list[dict[str, Any]] = []
    for position, tool in enumerate(body.tools):
        path = f"tools.{position}"
        given = {name: value for name, value in tool.items() if value is not None and name not in _HINTS}
        if given.get("type", "custom") != "custom":
            raise InvalidRequestError(
                f"not supported yet: tools of type {given['type']!r}, which Anthropic's servers run; define one with a "
                "name and an input_schema",
                param=f"{path}.type",
                code="unsupported_parameter",
            )
        check_tool_fields(given, path, _TOOL_FIELDS, _NEUTRAL, warnings)
        if "input_schema" not in given:
            raise InvalidRequestError(f"{path}.input_schema is missing", param=f"{path}.input_schema")
        function = {name: given[name] for name in ("name", "description", "strict") if name in given}
        tools.append({"type": "function", "function": function | {"parameters": given["input_schema"]}})
    return tools


def _tool_choice(body: CountTokensRequest, warnings: WarningList) -> dict[str, Any]:
    if body.tool_choice is None:
        return {}
    check_tool_fields(body.tool_choice, "tool_choice", ("type", "name", "disable_parallel_tool_use"), {}, warnings)
    alone = body.tool_choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        path = "tool_choice.disable_parallel_tool_use"
        raise InvalidRequestError(f"{path} must be true or false", param=path)
    choice: str | dict[str, Any]
    match body.tool_choice.get("type"):
        case "auto" | "none" as kind:
            choice = kind
        case "any":
            choice = "required"
        case "tool":
            choice = {"type": "function", "function": {"name": body.tool_choice.get("name")}}
        case _:
            raise InvalidRequestError("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    return {"tool_choice": choice, "parallel_tool_calls": not alone}


def _thinking(body: CountTokensRequest) -> dict[str, Any]:
    thinking = body.thinking
    if thinking is None:
        return {}
    if thinking.budget_tokens is not None and thinking.type != "enabled":
        path = "thinking.budget_tokens"
        raise InvalidRequestError(f"{path} is only for thinking of type enabled", param=path)
    fields: dict[str, Any] = {"include_reasoning": False} if thinking.display == "omitted" else {}
    if thinking.type == "adaptive":
        return fields  # as the model likes
    return fields | {"thinking": ThinkingOptions(type=thinking.type, budget_tokens=thinking.budget_tokens)}


def _check_thread(body: MessagesRequest) -> None:
    """Refuse `thread`. With this code, Anthropic's SDK sends the whole conversation from now on."""
    if body.thread is not None:
        raise InvalidRequestError(
            "not supported: thread; conversations are not kept here: send all messages, without thread",
            param="thread",
            code=THREAD_UNSUPPORTED,
        )


def _check_context_management(given: dict[str, Any], warnings: WarningList) -> None:
    """Whatever shortens the conversation is left undone; what would put something else in its place is refused."""
    edits = screen(given, ("edits",), where="context_management.", warnings=warnings).get("edits", [])
    if not isinstance(edits, list):
        raise InvalidRequestError("context_management.edits must be a list", param="context_management.edits")
    for position, edit in enumerate(edits):
        path = f"context_management.edits.{position}.type"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if not isinstance(kind, str) or not kind.startswith(_EDITS):
            raise InvalidRequestError(
                f"not supported yet: {path} {kind!r}; it can be {' or '.join(f'{name}…' for name in _EDITS)}",
                param=path,
                code="unsupported_parameter",
            )


def _response_format(body: CountTokensRequest) -> tuple[str, dict[str, Any] | None]:
    """The format, and the field that asks for it."""
    newer = body.output_config.format if body.output_config is not None else None
    if newer is not None and body.output_format is not None:
        raise InvalidRequestError(
            "output_config.format and output_format are the same option; give one of them", param="output_format"
        )
    path = "output_config.format" if body.output_format is None else "output_format"
    form = newer or body.output_format
    if form is None:
        return path, None
    if form.get("type") != "json_schema":
        raise InvalidRequestError(f"{path}.type must be json_schema", param=f"{path}.type")
    return path, {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
