"""ToolPlan: what the prompt says of a request's tools, which calls the model may make, and how they are read."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import orjson

from palladio.http.prompts.tool_definitions import Definitions, ToolChoice, read_functions, read_tools
from palladio.http.tool_calls.grammars.grammar import answer_or_calls_grammar, forced_grammar, strict_grammar
from palladio.http.tool_calls.grammars.lark import Notation
from palladio.http.tool_calls.json_formats import GENERIC_JSON
from palladio.http.tool_calls.reading.base import Function, Functions, ToolCallParser
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.schema_rewriting import UnsupportedSchemaError, rewritten
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools of one request.

    Attributes:
        template_tools: what the chat template gets; None without tools and with tool_choice none.
        has_grammar: the tools alone hold the output to a `grammar`.
        visible_special_ids: special tokens that the parser has to see in the text.
        is_forced: the answer can be nothing but calls, by tool_choice.
        is_generic: the prompt has the tools as plain text, and the model writes calls in JSON.
        leaves_strict: functions ask for calls that keep to their schema, which nothing holds them to.
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
    leaves_strict: bool = False

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
        if body.tools is None and body.functions is None and body.tool_choice is None and body.function_call is None:
            return cls.none()
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
        if forced and not tool_format.can_force:
            raise _cannot_force("function_call" if body.functions else "tool_choice")
        is_strict = holds_all or any(function.strict for function in callable_now.values())
        reads, is_free = forced or tool_format.reads_free_text, tool_format.is_template and not forced
        found = (tokenizer.special_id(text) for text in tool_format.special) if reads else ()
        return cls(
            template_tools=tuple(_template_tool(name, fields) for name, fields in definitions.items()),
            has_grammar=forced or (is_strict and reads and not is_free),
            visible_special_ids=tuple(i for i in found if i is not None),
            _format=tool_format if reads else None,
            _callable=callable_now,
            is_forced=forced,
            is_generic=is_generic,
            leaves_strict=is_strict and is_free,
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

    @property
    def is_read_by_template(self) -> bool:
        """Whether a response template reads the calls, and not `new_parser`."""
        return self._format is not None and self._format.is_template and not self.is_forced

    @property
    def functions(self) -> Functions:
        """That may be called."""
        return self._callable

    @property
    def is_parallel(self) -> bool:
        """Whether there may be several calls."""
        return self._parallel

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
            field: the field that asks for it.

        Raises:
            InvalidRequestError: the answer's grammar is of a kind that cannot be combined with calls.
        """
        if answer is None or self.is_forced:
            return self.grammar
        if self._format is None:
            return answer
        assert self._notation is not None
        functions, syntax = tuple(self._callable.values()), self._format.syntax
        combined = None
        if not self.is_read_by_template:
            combined = answer_or_calls_grammar(syntax, functions, self._notation, answer, field, many=self._parallel)
        if combined is None:
            why = "JSON is how this model writes calls" if answer.kind == "json_schema" else "only a JSON schema does"
            if self.is_read_by_template:
                why = "its response template has no grammar for them"
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


def _cannot_force(param: str) -> InvalidRequestError:
    """What forces a call to a model whose response template reads calls that are no JSON."""
    message = (
        "{param}: no call can be forced: the response template of this model reads calls that are not JSON, and has "
        'no grammar for them; use "auto", or start the server with another --tool-call-parser'
    )
    return InvalidRequestError.of(message, param=param, code="unsupported_parameter")


def tools_size(body: ToolFields) -> int:
    """How much there is to read of the tools, in bytes."""
    given = (body.tools, body.tool_choice, body.functions)
    return len(orjson.dumps(given)) if any(given) else 0


def _functions(definitions: Definitions, path: str) -> dict[str, Function]:
    """Make the functions that the definitions describe.

    Args:
        path: path of a function in the request, with {} for its position.
    """
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
