"""What the engine asks of a library for grammars. There is one, llguidance, imported when it is first needed."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from palladio.runtime.grammar.constraint import Matcher
from palladio.runtime.interface.request.grammar_spec import Grammar

MAX_WHITESPACE = 64  # characters between two tokens of JSON


@dataclasses.dataclass(frozen=True, slots=True)
class JsonFormat:
    """How JSON is written where a schema leaves it open.

    Attributes:
        whitespace_pattern: what may stand between its tokens; None: any whitespace, up to MAX_WHITESPACE of it: without
            a bound some models go on with it for ever.
        is_compact: nothing may.
        closes_objects: an object that lists its properties has no others, unless the schema says so.
    """

    whitespace_pattern: str | None = None
    is_compact: bool = False
    closes_objects: bool = True

    def options(self) -> dict[str, Any]:
        """The same under llguidance's names."""
        if self.is_compact:
            return {"whitespace_flexible": False}
        return {"whitespace_pattern": self.whitespace_pattern or rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"}


@dataclasses.dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a backend is made of; another process makes the same one of it.

    Attributes:
        tokenizer_json: the text of a tokenizer.json.
        vocab_size: V, columns of the logits.
        eos_ids: tokens that end an output; one of them may follow wherever a grammar is complete.
    """

    tokenizer_json: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    json_format: JsonFormat = JsonFormat()


class CompiledGrammar(Protocol):
    """A grammar that any number of outputs can begin with."""

    def new_matcher(self) -> Matcher: ...


class GrammarBackend(Protocol):
    """Compiles grammars for one tokenizer, and fills masks. Safe to use from several threads."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """
        Raises:
            InvalidRequestError: it is malformed, or holds what is not supported; the message says where.
        """

    def fill(self, matchers: Sequence[tuple[Matcher, int]], masks: npt.NDArray[np.int32]) -> None:
        """Writes the masks of the next tokens.

        Args:
            matchers: of this backend's grammars, each with its row.
            masks: i32[B, ⌈V / 32⌉].
        """
