"""ToolFormat: how a model family writes tool calls."""

import dataclasses
from collections.abc import Callable

from palladio.http.tool_calls.grammars.grammar import CallSyntax
from palladio.http.tool_calls.reading.base import Functions, ToolCallParser
from palladio.http.tool_calls.reading.output import CallOutput, NewId, openai_id


@dataclasses.dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model family writes tool calls.

    Attributes:
        name: of its parser.
        parser: makes the parser of one sample.
        syntax: for grammars.
        reads_free_text: calls can be distinguished from other text; else they are read only where a grammar forces one.
        new_id: makes the id of a call.
        is_template: a response template reads calls, not the parser, and gives no grammar for them: a forced call is in
            the syntax, and the parser reads it.
        can_force: a call can be forced.
    """

    name: str
    parser: Callable[[CallOutput], ToolCallParser]
    syntax: CallSyntax
    reads_free_text: bool = True
    new_id: NewId = openai_id
    is_template: bool = False
    can_force: bool = True

    @property
    def special(self) -> tuple[str, ...]:
        """What the parser has to see in the text where the tokenizer has it as a special token."""
        return self.syntax.marks

    def new_parser(self, functions: Functions, *, parallel: bool = True) -> ToolCallParser:
        """
        Args:
            functions: that may be called.
            parallel: false: calls after the first are dropped.
        """
        return self.parser(CallOutput(functions, parallel=parallel, new_id=self.new_id))
