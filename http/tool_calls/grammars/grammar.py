"""Grammars for calls, each in its family's own format, so that the model writes what it was trained to write."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palladio.http.tool_calls.grammars.lark import ANY_TEXT, Notation, Rules, either, joined
from palladio.http.tool_calls.reading.base import Function
from palladio.http.wire.body import read_json
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.schema_rewriting import UnsupportedSchemaError, rewritten

_OPEN_OBJECT = ("properties", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "enum")


def json_arguments(rules: Rules, function: Function) -> str:
    """Arguments as JSON; a function without parameters takes an object without properties."""
    if not any(function.parameters.get(key) for key in _OPEN_OBJECT):
        return rules.text("{}")
    return rules.json({"type": "object", **function.parameters})


@dataclasses.dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a family writes calls: opening, begin, arguments, end, [separator, begin, …,] closing.

    Attributes:
        begin: what comes before the arguments, by the function's name.
        end: what comes after them.
        opening: comes before the first call.
        separator: comes between two calls; None: there is one call in an answer.
        closing: comes after the last call.
        arguments: an expression for a function's arguments.
        marks: strings in all of these that may be tokens.
        trigger: how the opening (with the begin) starts where it shows that a call comes; None: all of the two.
        lead: may come before the opening, and before an answer.
        answer: comes before an answer that calls nothing.
    """

    begin: Callable[[str], str]
    end: str = ""
    opening: str = ""
    separator: str | None = None
    closing: str = ""
    arguments: Callable[[Rules, Function], str] = json_arguments
    marks: tuple[str, ...] = ()
    trigger: str | None = None
    lead: str = ""
    answer: str = ""


def forced_grammar(syntax: CallSyntax, functions: Sequence[Function], notation: Notation, *, many: bool) -> Grammar:
    """Nothing but one call, or one or more if `many`."""
    writer = _Writer(syntax, functions, notation, many=many)
    return writer.grammar(writer.calls())


def strict_grammar(syntax: CallSyntax, functions: Sequence[Function], notation: Notation, *, many: bool) -> Grammar:
    """Any text, in which the start of a call commits to a whole one; functions that are not strict take any object."""
    loose = {"type": "object", "additionalProperties": True}
    held = [function if function.strict else Function(function.name, loose) for function in functions]
    writer = _Writer(syntax, held, notation, many=many)
    if syntax.answer:  # the first token decides, and text has a place of its own
        return writer.grammar(f"{writer.answer(ANY_TEXT)} | {writer.calls()}")
    return writer.grammar(f"{writer.answer(ANY_TEXT)} | {writer.calls_in_text()}")


def answer_or_calls_grammar(
    syntax: CallSyntax, functions: Sequence[Function], notation: Notation, answer: Grammar, field: str, *, many: bool
) -> Grammar | None:
    """Calls, or an answer in its grammar; None if the two cannot be distinguished, or the answer's is no JSON schema.

    Args:
        field: the field that asks for the answer's grammar.
    """
    begins_like_json = not syntax.answer and not syntax.opening.startswith(syntax.marks or ("{", "["))
    schema = read_json(answer.text, param=field) if answer.kind == "json_schema" else None
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict) or begins_like_json:
        return None
    writer = _Writer(syntax, functions, notation, many=many)
    rules = writer.rules
    answer_json = _written(field, schema, lambda: rules.json(schema))
    grammar = writer.grammar(f"{rules.rule(writer.answer(answer_json))} | {rules.rule(writer.calls())}")
    return dataclasses.replace(grammar, parts=((field, answer.text), *grammar.parts))


def _written(field: str, schema: Mapping[str, Any], write: Callable[[], str]) -> str:
    """
    Args:
        schema: in that field, of which some may be written piece by piece.

    Raises:
        InvalidRequestError: it cannot be kept to.
    """
    try:
        return write()
    except UnsupportedSchemaError as error:
        reason = str(error)
        try:
            rewritten(schema, closes_objects=False)
        except UnsupportedSchemaError as whole:
            reason = str(whole)  # with the place in all of it
        raise InvalidRequestError.of("{param} at {reason}", param=field, reason=reason) from None


class _Writer:
    """The expressions of one grammar; the arguments of each function are written once."""

    def __init__(self, syntax: CallSyntax, functions: Sequence[Function], notation: Notation, *, many: bool) -> None:
        self.rules = Rules(notation, syntax.marks)
        self._syntax = syntax
        self._many = many and syntax.separator is not None
        self._arguments: dict[str, str] = {}
        for function in functions:
            write = functools.partial(syntax.arguments, self.rules, function)
            expression = _written(function.path, function.parameters, write)
            self._arguments[function.name] = self.rules.rule(expression) if expression else ""
        self._lead = f"({self.rules.text(syntax.lead)})?" if syntax.lead else ""
        given = [function for function in functions if function.path]
        self._parts = tuple((function.path, json.dumps(function.parameters)) for function in given)

    def grammar(self, start: str) -> Grammar:
        return Grammar("lark", self.rules.grammar(start), self._parts)

    def calls(self) -> str:
        """Calls, and nothing before them but the lead."""
        opening, closing = self.rules.text(self._syntax.opening), self.rules.text(self._syntax.closing)
        return joined(self._lead, opening, self._any_call(), self._more_calls(), closing)

    def calls_in_text(self) -> str:
        """Text, then calls; what the text must not hold otherwise is their trigger."""
        heads: dict[str, list[str]] = {}
        for name in self._arguments:
            text = self._syntax.opening + self._syntax.begin(name)
            trigger = text if self._syntax.trigger is None else self._syntax.trigger
            heads.setdefault(trigger, []).append(self._call(name, text[len(trigger) :]))
        starts = [joined(self.rules.text_before(trigger), either(calls)) for trigger, calls in heads.items()]
        return joined(self._lead, either(starts), self._more_calls(), self.rules.text(self._syntax.closing))

    def answer(self, expression: str) -> str:
        """An answer that calls nothing."""
        return joined(self._lead, self.rules.text(self._syntax.answer), expression)

    def _more_calls(self) -> str:
        """What may follow the first call."""
        if not self._many or self._syntax.separator is None:
            return ""
        return f"({joined(self.rules.text(self._syntax.separator), self._any_call())})*"

    def _any_call(self) -> str:
        return either([self._call(name, self._syntax.begin(name)) for name in self._arguments])

    def _call(self, name: str, begin: str) -> str:
        return joined(self.rules.text(begin), self._arguments[name], self.rules.text(self._syntax.end)) or '""'
