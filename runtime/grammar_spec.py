"""What may constrain the tokens of a request, as it travels from front to engine: a grammar, and a bound on thinking."""

import dataclasses
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "ebnf", "lark", "choice", "structural_tag"]


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the output must be in.

    Attributes:
        kind: json_schema, choice (a list of strings) and structural_tag are JSON texts; ebnf is GBNF, with a rule
            `root`; lark is llguidance's dialect, with a rule `start` (special tokens are written <|like_this|>).
        text: in that notation.
    """

    kind: GrammarKind
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Thinking:
    """Where an output is reasoning. A grammar holds for what follows.

    Attributes:
        start_ids: tokens that open it; without them as the first tokens of the output there is none, unless `begun`.
        end_ids: tokens that close it.
        begun: the prompt has opened it, so that the output begins inside.
        budget: most tokens inside; then it is closed. None: no bound.
    """

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    begun: bool = False
    budget: int | None = None
