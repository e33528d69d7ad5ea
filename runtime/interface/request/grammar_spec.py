"""What constrains the tokens of a request, as it travels from front to engine: a grammar, and a bound on thinking."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from palladio.runtime.interface.errors import InvalidRequestError

GRAMMAR_NAMES = ("json_schema", "regex", "ebnf", "structural_tag")  # SGLang's sampling parameters
MAX_ANSWER_ROOM = 1024  # tokens that thinking leaves to an answer in a grammar, where nothing else is asked for

GrammarKind = Literal["json_schema", "regex", "ebnf", "lark", "choice", "structural_tag"]


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the output must be in.

    Attributes:
        kind: json_schema, choice (a list of strings) and structural_tag are JSON texts; ebnf is GBNF, with a rule
            `root`; lark is llguidance's dialect, with a rule `start` (special tokens are written <|like_this|>).
        text: in that notation.
        parts: the JSON schemas within it, each with the field that it came from, for messages.
    """

    kind: GrammarKind
    text: str
    parts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kind: GrammarKind, value: object, param: str) -> Self:
        """From what a caller gives: the text, or for the kinds that are JSON what it says.

        Raises:
            InvalidRequestError: it is of the wrong type; `param` names it.
        """
        is_json = kind in ("json_schema", "structural_tag") and isinstance(value, dict | bool)
        is_list = kind == "choice" and isinstance(value, list) and all(isinstance(item, str) for item in value)
        if isinstance(value, str):
            text = value
        elif is_json or is_list:
            text = json.dumps(value)
        else:
            expected = {"choice": "a list of strings", "json_schema": "a JSON schema", "structural_tag": "an object"}
            form = expected.get(kind, "a string")
            raise InvalidRequestError.of("{param} must be {form}", param=param, form=form)
        if not text.strip():
            raise InvalidRequestError.of("{param} must not be empty", param=param)
        return cls(kind, text)


@dataclasses.dataclass(frozen=True, slots=True)
class Thinking:
    """Where an output is reasoning. A grammar holds for what follows.

    Attributes:
        start_ids: tokens that open it; without them as the first tokens of the output there is none, unless `begun`.
        end_ids: tokens that close it.
        begun: the prompt has opened it, so that the output begins inside.
        budget: most tokens inside; then it is closed. None: no bound.
        num_telling: how many of end_ids, from the first one on, show that it closes; the others then have to follow,
            where a model could also go on in another way. None: all.
        forbidden_ids: tokens that may not stand inside.
    """

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    begun: bool = False
    budget: int | None = None
    num_telling: int | None = None
    forbidden_ids: tuple[int, ...] = ()

    def leaving_room(self, max_tokens: int) -> Self | None:
        """The same, closed in time for an answer: else one that must be in a grammar could end before it begins.

        A budget that leaves room stays. Otherwise half of the output is for the answer, but at most MAX_ANSWER_ROOM.

        Args:
            max_tokens: of the whole output.

        Returns:
            None: there is too little room to begin with.
        """
        tags = len(self.end_ids) + (0 if self.begun else len(self.start_ids))
        if self.budget is not None and self.budget + tags < max_tokens:
            return self
        budget = max_tokens - tags - min(max_tokens // 2, MAX_ANSWER_ROOM)
        if budget <= 0 and not self.begun:
            return None
        return dataclasses.replace(self, budget=max(0, budget))


@dataclasses.dataclass(frozen=True, slots=True)
class ThoughtClosing:
    """How an output is kept from ending inside a thought: an end of sequence there closes the thought instead, and the
    next token is another one.

    Attributes:
        end_ids: tokens that close a thought.
        begun: the prompt has opened one, so that the output begins inside.
        start_ids: as the first tokens of the output, they open one; (): nothing does.
        marks: tokens, and whether a thought is open after them. The last ones in the output decide; of several that
            stand at one place, the first.
        last_ids: end-of-sequence ids that end the output inside a thought, too.
    """

    end_ids: tuple[int, ...]
    begun: bool
    start_ids: tuple[int, ...]
    marks: tuple[tuple[tuple[int, ...], bool], ...]
    last_ids: tuple[int, ...] = ()

    def leaves_open(self, output_ids: Sequence[int]) -> bool:
        """Return whether an output ends inside a thought."""
        starts = self.start_ids
        is_open = self.begun or (bool(starts) and tuple(output_ids[: len(starts)]) == starts)
        last = -1
        for token_ids, opens in reversed(self.marks):
            place = _last_place(output_ids, token_ids)
            if place >= max(last, 0):
                last, is_open = place, opens
        return is_open


def _last_place(output_ids: Sequence[int], token_ids: tuple[int, ...]) -> int:
    """Return where tokens stand last in an output; -1: nowhere. Outputs are long, so no loop looks at each token."""
    backwards, behind = output_ids[::-1], 0
    for _ in range(backwards.count(token_ids[0])):
        behind = backwards.index(token_ids[0], behind) + 1
        place = len(output_ids) - behind
        if tuple(output_ids[place : place + len(token_ids)]) == token_ids:
            return place
    return -1


def with_grammar(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """SGLang's parameters that are grammars, as one.

    Raises:
        InvalidRequestError: several are given, or one is of the wrong type.
    """
    given = [name for name in GRAMMAR_NAMES if values.get(name) is not None]
    if not given:
        return {name: value for name, value in values.items() if name not in GRAMMAR_NAMES}
    if len(given) > 1 or values.get("grammar") is not None:
        message = "{names} exclude each other; give one"
        raise InvalidRequestError.of(message, param=given[-1], fields={"names": given})
    grammar = Grammar.of(given[0], values[given[0]], given[0])  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if name not in GRAMMAR_NAMES} | {"grammar": grammar}
