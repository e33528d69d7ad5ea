"""ToolPlan: what the tools of a request mean for its prompt, its grammar and the reading of its answer."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from palladio.http.protocol_tools import ToolFields
from palladio.http.tool_calls.base import ToolCallParser
from palladio.http.tool_calls.formats import ToolFormat
from palladio.http.tool_calls.functions import Function, Functions
from palladio.http.tool_calls.grammar import answer_or_calls_grammar, forced_grammar, strict_grammar
from palladio.http.tool_choice import ToolChoice, read_functions, read_tools
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.grammar_spec import Grammar
from palladio.runtime.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools of one request.

    Attributes:
        template_tools: what the chat template gets; None without tools and with tool_choice none.
        grammar: what the output (after its reasoning) must be in: a call with tool_choice required or a name, else
            free text in which calls of strict functions keep to their schema; None: free.
        visible_special_ids: special tokens that the parser has to see in the text.
    """

    template_tools: tuple[dict[str, Any], ...] | None
    grammar: Grammar | None
    visible_special_ids: tuple[int, ...]
    _format: ToolFormat | None
    _callable: Functions
    _forced: bool
    _parallel: bool
    _tokenizer: Tokenizer | None

    @classmethod
    def of(cls, body: ToolFields, tool_format: ToolFormat, tokenizer: Tokenizer) -> Self:
        """
        Args:
            body: the request's tools, tool_choice, parallel_tool_calls, functions and function_call.
            tool_format: the family's way to write calls, `Context.tool_format`.

        Raises:
            InvalidRequestError: a field is malformed, or asks for a tool that is not there; `param` is its path.
        """
        definitions = read_functions(body) if body.functions else read_tools(body)
        choice = ToolChoice.of(body, tuple(definitions))
        if choice.mode == "none" or not definitions:
            return cls.none()
        functions = {name: _function(name, fields) for name, fields in definitions.items()}
        callable_now = {name: functions[name] for name in choice.names}
        forced = choice.mode == "required"
        parallel = body.parallel_tool_calls is not False and not body.functions
        grammar = None
        if forced:
            many = parallel and not choice.is_named
            grammar = forced_grammar(tool_format.syntax, tuple(callable_now.values()), tokenizer, many=many)
        elif any(function.strict for function in callable_now.values()) and tool_format.reads_free_text:
            grammar = strict_grammar(tool_format.syntax, tuple(callable_now.values()), tokenizer, many=parallel)
        reads = forced or tool_format.reads_free_text
        found = (tokenizer.special_id(text) for text in tool_format.special) if reads else ()
        return cls(
            template_tools=tuple(_template_tool(name, fields) for name, fields in definitions.items()),
            grammar=grammar,
            visible_special_ids=tuple(i for i in found if i is not None),
            _format=tool_format if reads else None,
            _callable=callable_now,
            _forced=forced,
            _parallel=parallel,
            _tokenizer=tokenizer,
        )

    @classmethod
    def none(cls) -> Self:
        """The plan of a request without tools."""
        return cls(None, None, (), None, {}, _forced=False, _parallel=True, _tokenizer=None)

    @property
    def reads_calls(self) -> bool:
        """Whether samples are to be read with `new_parser`."""
        return self._format is not None

    def new_parser(self) -> ToolCallParser:
        """A parser for one sample; only if it `reads_calls`."""
        assert self._format is not None
        return self._format.new_parser(self._callable, parallel=self._parallel)

    def grammar_with(self, answer: Grammar | None) -> Grammar | None:
        """The one grammar of the request.

        Args:
            answer: of its response_format, regex or the like: what an answer that calls nothing must be in.

        Raises:
            InvalidRequestError: the answer's grammar leaves no room for the call that tool_choice asks for, or is of
                a kind that cannot be put beside calls.
        """
        if answer is None:
            return self.grammar
        if self._format is None:
            return answer
        if self._forced:
            raise InvalidRequestError(
                "tool_choice asks for a tool call, response_format (or regex, ebnf …) for another form; give one",
                param="tool_choice",
            )
        assert self._tokenizer is not None
        functions = tuple(self._callable.values())
        combined = answer_or_calls_grammar(self._format.syntax, functions, self._tokenizer, answer, many=self._parallel)
        if combined is None:
            raise InvalidRequestError(
                f"tools that the model may call do not go together with a grammar of kind {answer.kind}: use "
                'response_format with a JSON schema, or tool_choice "none"',
                param="tools",
            )
        return combined


def _function(name: str, fields: Mapping[str, Any]) -> Function:
    return Function(name, fields.get("parameters", {}), strict=fields.get("strict") is True)


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
    return {name: _function(name, fields) for name, fields in read_tools(body).items()}
