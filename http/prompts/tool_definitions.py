"""The functions that a chat request offers, and which of them it lets the model call."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from palladio.http.wire.protocol_chat import ToolFields
from palladio.http.wire.typed_json import typed, without_nulls
from palladio.runtime.interface.errors import InvalidRequestError

MAX_TOOLS = 128  # OpenAI's
MAX_NAME_LENGTH = 128
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")

Definitions = Mapping[str, Mapping[str, Any]]  # function name → its object, without nulls


@dataclasses.dataclass(frozen=True, slots=True)
class ToolChoice:
    """
    Attributes:
        mode: none: no call; auto: as the model likes; required: at least one.
        names: what may be called.
        is_named: exactly one call of the one name.
    """

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...]
    is_named: bool = False

    @classmethod
    def of(cls, body: ToolFields, names: tuple[str, ...]) -> Self:
        """
        Args:
            names: of the functions that the request offers.

        Raises:
            InvalidRequestError: malformed, or it names a function that is not offered.
        """
        if body.functions is not None or body.function_call is not None:
            return cls._of_function_call(body, names)
        choice = body.tool_choice
        if choice is None or choice in ("none", "auto"):
            return cls("none" if choice == "none" else "auto", names)
        if not names:
            raise InvalidRequestError.of(
                "{param} needs {tools} to choose from", param="tool_choice", fields={"tools": "tools"}
            )
        if choice == "required":
            return cls("required", names)
        kind = choice.get("type") if isinstance(choice, dict) else None
        if isinstance(choice, dict) and kind == "function":
            return cls("required", (_named(choice, "tool_choice", names),), is_named=True)
        if isinstance(choice, dict) and kind == "allowed_tools":
            return cls._of_allowed(choice.get("allowed_tools"), names)
        if kind == "custom":
            raise _unsupported("tool_choice.type", "custom tools")
        raise InvalidRequestError.of(
            '{param} must be "none", "auto", "required", {{"type": "function", "function": {{"name": …}}}} or '
            '{{"type": "allowed_tools", "allowed_tools": {{"mode": …, "tools": […]}}}}',
            param="tool_choice",
        )

    @classmethod
    def _of_function_call(cls, body: ToolFields, names: tuple[str, ...]) -> Self:
        """The fields that tools and tool_choice replaced."""
        if body.tools is not None or body.tool_choice is not None:
            raise InvalidRequestError(
                "functions and function_call cannot be combined with tools; use tools", param="functions"
            )
        choice = body.function_call
        if choice is None or choice in ("none", "auto"):
            return cls("none" if choice == "none" else "auto", names)
        named = typed(choice, dict, "function_call", '"none", "auto" or {"name": …}')
        return cls("required", (_known(named.get("name"), "function_call.name", names),), is_named=True)

    @classmethod
    def _of_allowed(cls, allowed: object, names: tuple[str, ...]) -> Self:
        path = "tool_choice.allowed_tools"
        tools = allowed.get("tools") if isinstance(allowed, dict) else None
        mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
        if not isinstance(tools, list) or not tools or mode not in ("auto", "required"):
            message = '{param} must have a mode, "auto" or "required", and a list of tools'
            raise InvalidRequestError.of(message, param=path)
        _check_number(tools, f"{path}.tools")
        chosen = [_named(tool, f"{path}.tools.{position}", names) for position, tool in enumerate(tools)]
        return cls(mode, tuple(name for name in names if name in chosen))


def read_tools(body: ToolFields) -> Definitions:
    """The functions of `tools`, by name.

    Raises:
        InvalidRequestError: one is malformed; `param` is its path.
    """
    definitions: dict[str, Mapping[str, Any]] = {}
    _check_number(body.tools, "tools")
    for position, tool in enumerate(body.tools or ()):
        path = f"tools.{position}"
        kind = tool.get("type")
        if kind == "custom":
            raise _unsupported(f"{path}.type", "tools of type custom")
        if kind not in (None, "function"):
            raise InvalidRequestError.of('{param} must be "function"', param=f"{path}.type")
        _add(definitions, tool.get("function"), f"{path}.function")
    return definitions


def read_functions(body: ToolFields) -> Definitions:
    """The functions of `functions`, by name.

    Raises:
        InvalidRequestError: one is malformed; `param` is its path.
    """
    definitions: dict[str, Mapping[str, Any]] = {}
    _check_number(body.functions, "functions")
    for position, function in enumerate(body.functions or ()):
        _add(definitions, function, f"functions.{position}")
    return definitions


def _check_number(entries: Sequence[Any] | None, path: str) -> None:
    if entries is not None and len(entries) > MAX_TOOLS:
        message = "{param} must not be more than {most}, got {count}"
        raise InvalidRequestError.of(message, param=path, most=MAX_TOOLS, count=len(entries))


def _add(definitions: dict[str, Mapping[str, Any]], function: object, path: str) -> None:
    fields = without_nulls(function, path, "an object with a name")
    name = fields.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        message = "{param} must be 1 … {most} letters, digits and _ . -"
        raise InvalidRequestError.of(message, param=f"{path}.name", most=MAX_NAME_LENGTH)
    if name in definitions:
        raise InvalidRequestError.of(
            "{param}: another function has the same name, {name}", param=f"{path}.name", name=name
        )
    typed(fields.get("description", ""), str, f"{path}.description", "a string")
    typed(fields.get("strict", False), bool, f"{path}.strict", "true or false")
    if "parameters" in fields:
        fields["parameters"] = _parameters(fields["parameters"], f"{path}.parameters")
    definitions[name] = fields


def _parameters(schema: object, path: str) -> dict[str, Any]:
    """The schema of an object, its outer nulls left out."""
    kept = without_nulls(schema, path, "a JSON schema, an object")
    if kept.get("type", "object") != "object":
        raise InvalidRequestError.of('{param} must be "object": arguments have names', param=f"{path}.type")
    properties = kept.get("properties", {})
    kinds = (dict, bool)  # a union would be made anew for each value
    if not isinstance(properties, dict) or not all(isinstance(value, kinds) for value in properties.values()):
        raise InvalidRequestError.of("{param} must map names to JSON schemas", param=f"{path}.properties")
    required = kept.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidRequestError.of("{param} must be a list of names", param=f"{path}.required")
    return kept


def _named(choice: object, path: str, names: Sequence[str]) -> str:
    """The name in `{"type": "function", "function": {"name": …}}`."""
    given = choice.get("function") if isinstance(choice, dict) else None
    function = typed(given, dict, f"{path}.function", "an object with a name")
    return _known(function.get("name"), f"{path}.function.name", names)


def _known(name: object, path: str, names: Sequence[str]) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidRequestError.of("{param} must be the name of a function", param=path)
    if name not in names:
        offered = ", ".join(names) or "none"
        message = "{param}: there is no function {name!r}; offered: {offered}"
        raise InvalidRequestError.of(message, param=path, name=name[:200], offered=offered)
    return name


def _unsupported(path: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"not supported yet: {what}; define a function with one string parameter",
        param=path,
        code="unsupported_parameter",
    )
