"""Writing a grammar in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.runtime.tokenizer import Tokenizer

_SPACE = "[ ]?"  # within JSON: with more of it allowed, a model can write white space until it is cut off

ANY_TEXT = "TEXT"  # the name of the rule for any text


class Rules:
    """A grammar under construction.

    Args:
        marks: strings that the tokenizer may have as one token: where it has, the model writes that token.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Sequence[str]) -> None:
        found = {mark: tokenizer.added_id(mark) for mark in marks}
        self._ids = {mark: token_id for mark, token_id in found.items() if token_id is not None}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._rules: list[str] = []

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
        """An expression for JSON in a schema."""
        options = {"x-guidance": {"whitespace_pattern": _SPACE}}
        return "%json " + json.dumps({**schema, **options}, ensure_ascii=False)

    def rule(self, expression: str, *, lazy: bool = False) -> str:
        """Names an expression.

        Args:
            lazy: it ends as soon as it can; for a single token only.
        """
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name

    def text_before(self, mark: str) -> str:
        """An expression for any text up to this mark and with it, where the mark is found at once.

        White space before a mark that is a token is left to the text.
        """
        if mark.strip() in self._ids:
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
