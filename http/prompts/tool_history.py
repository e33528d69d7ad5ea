"""The tool calls of earlier messages, and their results, as chat templates get them."""

import json
from typing import Any

import pydantic_core

from palladio.http.prompts.template_calls import CallForms
from palladio.http.wire.body import JsonMeter, read_json
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError, MalformedJsonError

HISTORY_VALUES = 300_000  # that the arguments of all calls together may hold, as json_cost counts them


class ToolHistory:
    """Reads the messages of a conversation in their order.

    Args:
        forms: how the template takes the arguments of calls.
    """

    def __init__(self, forms: CallForms) -> None:
        self._forms = forms
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
            try:
                values = read_json(given, param=path, meter=self._meter)
            except MalformedJsonError:
                values = None
            if not isinstance(values, dict):  # cut off, or as a model wrote it: clients keep such turns, as OpenAI does
                return given if self._forms.cut_as_text else _read_what_can_be(given)
        elif given is None or isinstance(given, str):
            values = {}
        arguments = typed(values, dict, path, "a JSON object")
        if not self._forms.as_text:
            return arguments
        return given if arguments and isinstance(given, str) else json.dumps(arguments, ensure_ascii=False)


def _read_what_can_be(text: str) -> dict[str, Any]:
    """For a template that writes arguments by name: those before the fault, or the text as the only one."""
    try:
        values = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        values = None
    return values if isinstance(values, dict) and values else {"arguments": text}
