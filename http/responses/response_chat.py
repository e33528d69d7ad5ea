"""A request to /v1/responses as the chat request that it comes to."""

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.http.responses.protocol_responses import InputTokensRequest, ResponseRequest
from palladio.http.responses.response_items import Item, chat_messages
from palladio.http.wire.fields import FieldMap, WarningList, message_paths
from palladio.http.wire.protocol import SamplerFields, check_tool_fields
from palladio.http.wire.protocol_chat import ChatRequest, ReasoningOptions
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError

logger = logging.getLogger(__name__)

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (  # all but the first are of items that cannot come here, or that are there anyhow
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
)
SAME_NAME = (  # as for chat
    *SamplerFields.model_fields,
    *("model", "parallel_tool_calls", "chat_template_kwargs", "cache_salt", "priority", "timeout"),
)
_PATHS: Mapping[str, str] = {  # of the chat request → of this one
    "tool_choice.allowed_tools.tools.*.function": "tool_choice.tools.*",
    "tool_choice.allowed_tools": "tool_choice",
    "tool_choice.function": "tool_choice",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "max_completion_tokens": "max_output_tokens",
}
LEFT_OUT = (  # types of tools that are no functions: OpenAI's servers run them, or the client in ways of its own
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "computer", "computer_use"),
    *("local_shell", "shell", "apply_patch", "custom", "namespace", "tool_search"),
)
_VERSION = re.compile(r"(_preview)?(_\d{4}_\d{2}_\d{2})?\Z")  # behind a tool's type
_TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")
_NEUTRAL: Mapping[str, object] = {"defer_loading": False, "async": False, "allowed_callers": ["direct"]}


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """What a request goes on from.

    Attributes:
        earlier: items of the responses before it.
        new: its own.
        left_out: positions of items, among all of these, that the model does not get.
    """

    earlier: Sequence[Item]
    new: Sequence[Item]
    left_out: frozenset[int] = frozenset()


class ResponseChat:
    """A request's chat request.

    Attributes:
        chat: the same, as the chat route takes it.

    Args:
        warnings: unknown fields may pass with one.
        name: the request's id.

    Raises:
        InvalidRequestError: a field is malformed, or asks for what this server has not; `param` is its path.
    """

    def __init__(
        self, body: InputTokensRequest, conversation: Conversation, warnings: WarningList, name: str | None = None
    ) -> None:
        items = [("previous_response_id", item) for item in conversation.earlier]
        items += [(f"input.{position}", item) for position, item in enumerate(conversation.new)]
        if conversation.left_out:
            items = [item for position, item in enumerate(items) if position not in conversation.left_out]
        messages, self._paths = chat_messages(items)
        if body.instructions:
            messages.insert(0, {"role": "system", "content": body.instructions})
            self._paths.insert(0, "instructions")
        if not conversation.new:
            raise InvalidRequestError("input is missing: give a string, or a list of items", param="input")
        fields: dict[str, Any] = {name: value for name, value in body if name in SAME_NAME}
        tools, self._tool_paths = _tools(body, warnings)
        fields |= {"messages": messages, "rid": name, "tools": tools, "tool_choice": _tool_choice(body, warnings)}
        fields["response_format"] = _response_format(body)
        if body.reasoning is not None and body.reasoning.effort is not None:
            fields["reasoning"] = ReasoningOptions(effort=body.reasoning.effort)
        if body.text is not None:
            fields["verbosity"] = body.text.verbosity
        if isinstance(body, ResponseRequest):
            fields |= _of_output(body)
        self.chat = ChatRequest(**fields)

    @property
    def names(self) -> FieldMap:
        """What the chat request's fields are in this one."""
        return FieldMap(paths={**self._tool_paths, **_PATHS}, wholes=message_paths("input", self._paths))


def _of_output(body: ResponseRequest) -> dict[str, Any]:
    for position, name in enumerate(body.include or ()):
        if name not in INCLUDABLE:
            path = f"include.{position}"
            raise InvalidRequestError(f"{path}: unknown value {name[:200]!r}", param=path)
    has_logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise InvalidRequestError(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    return {
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": has_logprobs,
        "top_logprobs": (body.top_logprobs or 0) if has_logprobs else None,
        "stream": body.stream,
    }


def _tools(body: InputTokensRequest, warnings: WarningList) -> tuple[list[dict[str, Any]] | None, dict[str, str]]:
    """The functions, and what their paths in the chat request are in this one."""
    if body.tools is None:
        return None, {}
    tools: list[dict[str, Any]] = []
    paths: dict[str, str] = {}
    left_out: list[str] = []
    for position, tool in enumerate(body.tools):
        path = f"tools.{position}"
        given = {name: value for name, value in tool.items() if value is not None}
        kind = given.get("type")
        if isinstance(kind, str) and _VERSION.sub("", kind) in LEFT_OUT:
            left_out.append(kind)
            continue
        if kind != "function":
            raise InvalidRequestError(
                f"not supported yet: tools of type {kind!r}; this server takes tools of type function, and leaves out "
                f"{', '.join(LEFT_OUT)}",
                param=f"{path}.type",
                code="unsupported_parameter",
            )
        check_tool_fields(given, path, _TOOL_FIELDS, _NEUTRAL, warnings)
        kept = {name: given[name] for name in _TOOL_FIELDS[1:] if name in given}
        paths[f"tools.{len(tools)}.function"] = path
        tools.append({"type": "function", "function": kept})
    if left_out:
        kinds = ", ".join(dict.fromkeys(left_out))
        logger.info("Ignored tools of a request that are not functions: %s", kinds)
        message = "not supported: {param} of type {kinds}, which are not functions"
        error = InvalidRequestError.of(message, param="tools", code="unsupported_parameter", kinds=kinds)
        warnings.warn(error, outcome="left out")
    return tools, paths


def _tool_choice(body: InputTokensRequest, warnings: WarningList) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice
    check_tool_fields(choice, "tool_choice", ("type", "name", "mode", "tools"), {}, warnings)
    match choice.get("type"):
        case "function":
            return _function(choice)
        case "allowed_tools":
            mode, tools = choice.get("mode", "auto"), choice.get("tools")
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": _allowed(tools)}}
        case kind:
            raise InvalidRequestError(
                f"not supported yet: a tool_choice of type {kind!r}; it can be none, auto, required, or an object of "
                "type function or allowed_tools",
                param="tool_choice.type",
                code="unsupported_parameter",
            )


def _allowed(tools: object) -> list[dict[str, Any]]:
    functions = typed(tools, list, "tool_choice.tools", "a list of tools")
    for position, tool in enumerate(functions):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            path = f"tool_choice.tools.{position}"
            raise InvalidRequestError(f"{path} must be an object of type function with a name", param=path)
    return [_function(tool) for tool in functions]


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A named function as chat writes it; chat checks the name."""
    return {"type": "function", "function": {"name": tool.get("name")}}


def _response_format(body: InputTokensRequest) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
