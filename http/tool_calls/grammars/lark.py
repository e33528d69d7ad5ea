"""Writing a grammar in llguidance's dialect of Lark."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.schemas.schema_rewriting import rewritten
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

_ONE_SPACE = "[ ]?"  # within JSON: with more of it allowed, a model can write white space until it is cut off

MAX_SIZE = 4 * 1024 * 1024  # characters; engines take far fewer, and say how many: this is what is not even written
ANY_TEXT = "TEXT"  # the name of the rule for any text


@dataclasses.dataclass(frozen=True, slots=True)
class Notation:
    """How this server writes grammars.

    Attributes:
        tokenizer: says which strings are one token.
        config: says which white space JSON may have where its schema does not.
    """

    tokenizer: Tokenizer
    config: GrammarConfig = GrammarConfig()

    def json_options(self) -> dict[str, Any]:
        """For JSON, in llguidance's words."""
        if self.config.constrained_json_disable_any_whitespace:
            return {"whitespace_flexible": False}
        return {"whitespace_pattern": self.config.constrained_json_whitespace_pattern or _ONE_SPACE}


class Rules:
    """A grammar under construction.

    Args:
        marks: strings that the tokenizer may have as one token: where it has, the model writes that token.
    """

    def __init__(self, notation: Notation, marks: Sequence[str]) -> None:
        found = {mark: notation.tokenizer.added_id(mark) for mark in marks}
        self._ids = {mark: token_id for mark, token_id in found.items() if token_id is not None}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._json_options = notation.json_options()
        self._closes_objects = notation.config.json_additional_properties == "closed"
        self._rules: list[str] = []
        self._size = 0

    def reserve(self, size: int) -> None:
        """Count characters that will be written.

        Raises:
            InvalidRequestError: they are too many.
        """
        self._size += size
        if self._size > MAX_SIZE:
            raise InvalidRequestError(
                "the grammar for these tools is too large; offer fewer or simpler ones", param="tools"
            )

    def text(self, text: str) -> str:
        """An expression for exactly this text."""
        parts: list[str] = []
        at = 0
        for found in self._marks.finditer(text) if self._marks else ():
            parts += [quoted(text[at : found.start()])] if found.start() > at else []
            parts.append(f"<[{self._ids[found[0]]}]>")
            at = found.end()
        parts += [quoted(text[at:])] if at < len(text) else []
        return " ".join(parts)

    def json(self, schema: Mapping[str, Any]) -> str:
        """An expression for JSON in a schema.

        Raises:
            UnsupportedSchemaError: a keyword is not supported as the schema has it.
        """
        written = rewritten(schema, closes_objects=self._closes_objects)
        text = "%json " + json.dumps({"x-guidance": self._json_options} | written, ensure_ascii=False)
        self.reserve(len(text))
        return text

    def rule(self, expression: str, *, lazy: bool = False) -> str:
        """Names an expression.

        Args:
            lazy: it ends as soon as it can; for a single token only.
        """
        self.reserve(len(expression))
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name

    def recursive(self, write: Callable[[str], str]) -> str:
        """Name an expression that holds itself.

        Args:
            write: its name → the expression.
        """
        place = len(self._rules)
        name = f"rule_{place}"
        self._rules.append("")
        expression = write(name)
        self.reserve(len(expression))
        self._rules[place] = f"{name}: {expression}"
        return name

    def text_before(self, mark: str) -> str:
        """An expression for any text up to this mark and with it, where the mark is found at once.

        White space before a mark that begins with a token is left to the text.
        """
        if self._marks is not None and self._marks.match(mark.strip()):
            return f"{ANY_TEXT} {self.text(mark.strip())}"
        return self.rule(f"{ANY_TEXT} {quoted(mark)}", lazy=True)

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", f"{ANY_TEXT}: /(.|\\n)*/", *self._rules]) + "\n"


def either(expressions: Sequence[str]) -> str:
    """One of the expressions."""
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"


def joined(*expressions: str) -> str:
    """The expressions one after the other; empty ones are left out."""
    return " ".join(expression for expression in expressions if expression)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
