"""The tools of a chat request: what is offered, what the model is told of it, and which calls it may make."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import orjson

from palladio.http.tool_calls.formats import ToolFormat
from palladio.http.tool_calls.generic_json import GENERIC_JSON
from palladio.http.tool_calls.grammars.grammar import answer_or_calls_grammar, forced_grammar, strict_grammar
from palladio.http.tool_calls.grammars.lark import Notation
from palladio.http.tool_calls.reading.base import Function, Functions, ToolCallParser
from palladio.http.wire.protocol_chat import ToolFields
from palladio.http.wire.typed_json import typed, without_nulls
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.schema_rewriting import UnsupportedSchemaError, rewritten
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

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
    if not isinstance(properties, dict) or not all(isinstance(value, dict | bool) for value in properties.values()):
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


@dataclasses.dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools of one request.

    Attributes:
        template_tools: what the chat template gets; None without tools and with tool_choice none.
        has_grammar: the tools alone hold the output to a `grammar`.
        visible_special_ids: special tokens that the parser has to see in the text.
        is_forced: the answer can be nothing but calls, by tool_choice.
        is_generic: the prompt has the tools as plain text, and the model writes calls in JSON.
    """

    template_tools: tuple[dict[str, Any], ...] | None
    has_grammar: bool
    visible_special_ids: tuple[int, ...]
    is_forced: bool
    _format: ToolFormat | None
    _callable: Functions
    _parallel: bool
    _many: bool
    _holds_all: bool
    _notation: Notation | None
    is_generic: bool = False

    @classmethod
    def of(
        cls,
        body: ToolFields,
        tool_format: ToolFormat,
        tokenizer: Tokenizer,
        config: GrammarConfig = GrammarConfig(),
        *,
        is_written: bool = True,
    ) -> Self:
        """
        Args:
            body: the request's tools, tool_choice, parallel_tool_calls, functions and function_call.
            tool_format: the family's way to write calls, `ModelFacts.tool_format`.
            config: the engine's.
            is_written: the chat template writes tools into the prompt.

        Raises:
            InvalidRequestError: a field is malformed, or asks for a tool that is not there; `param` is its path.
        """
        definitions = read_functions(body) if body.functions else read_tools(body)
        choice = ToolChoice.of(body, tuple(definitions))
        if choice.mode == "none" or not definitions:
            return cls.none()
        functions = _functions(definitions, "functions.{}" if body.functions else "tools.{}.function")
        callable_now = {name: functions[name] for name in choice.names}
        forced = choice.mode == "required"
        parallel = body.parallel_tool_calls is not False and not body.functions
        is_generic = not is_written and not forced
        holds_all = is_generic and config.grammar_backend != "none"
        if is_generic:
            tool_format = GENERIC_JSON
        is_strict = holds_all or any(function.strict for function in callable_now.values())
        reads = forced or tool_format.reads_free_text
        found = (tokenizer.special_id(text) for text in tool_format.special) if reads else ()
        return cls(
            template_tools=tuple(_template_tool(name, fields) for name, fields in definitions.items()),
            has_grammar=forced or (is_strict and reads),
            visible_special_ids=tuple(i for i in found if i is not None),
            _format=tool_format if reads else None,
            _callable=callable_now,
            is_forced=forced,
            is_generic=is_generic,
            _parallel=parallel,
            _many=parallel and not choice.is_named,
            _holds_all=holds_all,
            _notation=Notation(tokenizer, config),
        )

    @classmethod
    def none(cls) -> Self:
        """The plan of a request without tools."""
        return cls(
            *(None, False, ()),
            is_forced=False,
            _format=None,
            _callable={},
            _parallel=True,
            _many=True,
            _holds_all=False,
            _notation=None,
        )

    @property
    def reads_calls(self) -> bool:
        """Whether samples are to be read with `new_parser`."""
        return self._format is not None

    def new_parser(self) -> ToolCallParser:
        """A parser for one sample; only if it `reads_calls`."""
        assert self._format is not None
        return self._format.new_parser(self._callable, parallel=self._parallel)

    @property
    def grammar(self) -> Grammar | None:
        """What the output (after its reasoning) must be in: a call with tool_choice required or a name, else free text
        in which calls of strict functions keep to their schema (of all, if it `is_generic`); None: anything.

        It is written anew each time, which takes time for large tools: see `tools_size`.

        Raises:
            InvalidRequestError: a schema cannot be kept to.
        """
        if not self.has_grammar:
            return None
        assert self._format is not None
        assert self._notation is not None
        functions, syntax = tuple(self._callable.values()), self._format.syntax
        if self.is_forced:
            return forced_grammar(syntax, functions, self._notation, many=self._many)
        if self._holds_all:
            functions = tuple(_held(function) for function in functions)
        return strict_grammar(syntax, functions, self._notation, many=self._many)

    def grammar_with(self, answer: Grammar | None, field: str = "response_format") -> Grammar | None:
        """The one grammar of the request. It takes time, as `grammar` does.

        Args:
            answer: what an answer that calls nothing must be in; where a call is forced, there is none.
            field: that asks for it.

        Raises:
            InvalidRequestError: the answer's grammar is of a kind that cannot be put beside calls.
        """
        if answer is None or self.is_forced:
            return self.grammar
        if self._format is None:
            return answer
        assert self._notation is not None
        functions, syntax = tuple(self._callable.values()), self._format.syntax
        combined = answer_or_calls_grammar(syntax, functions, self._notation, answer, field, many=self._parallel)
        if combined is None:
            why = "JSON is how this model writes calls" if answer.kind == "json_schema" else "only a JSON schema does"
            message = '{field} does not go together with {param} that the model may call: {why}; use {choice} "none"'
            fields = {"field": field, "choice": "tool_choice"}
            raise InvalidRequestError.of(message, param="tools", fields=fields, why=why)
        return combined


def _held(function: Function) -> Function:
    """A function whose calls keep to its schema, if a grammar can say it."""
    try:
        rewritten(function.parameters, closes_objects=False)
    except UnsupportedSchemaError:
        return function
    return dataclasses.replace(function, strict=True)


def tools_size(body: ToolFields) -> int:
    """How much there is to read of the tools, in bytes."""
    given = (body.tools, body.tool_choice, body.functions)
    return len(orjson.dumps(given)) if any(given) else 0


def _functions(definitions: Definitions, path: str) -> dict[str, Function]:
    """Args: path: of a function in the request, with {} for its position."""
    functions: dict[str, Function] = {}
    for position, (name, fields) in enumerate(definitions.items()):
        where = f"{path.format(position)}.parameters" if "parameters" in fields else ""
        functions[name] = Function(name, fields.get("parameters", {}), fields.get("strict") is True, where)
    return functions


def _template_tool(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Templates read description and parameters without asking whether they are there; `strict` is not for them."""
    others = {key: value for key, value in fields.items() if key not in ("name", "description", "parameters", "strict")}
    parameters = fields.get("parameters") or {"type": "object", "properties": {}}
    function = {"name": name, "description": fields.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": function | others}


def offered_functions(body: ToolFields) -> Functions:
    """The functions of `tools`, for a parser that is asked for on its own.

    Raises:
        InvalidRequestError: the list is malformed.
    """
    return _functions(read_tools(body), "tools.{}.function")
