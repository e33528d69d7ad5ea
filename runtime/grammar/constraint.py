"""Constraint: which tokens may come next in one output. First thinking, if there is any, then a grammar."""

from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from palladio.runtime.interface.request.grammar_spec import Thinking

MAX_FORCED = 1 << 16  # tokens in a row; more than any context holds to no purpose
MaskRow = npt.NDArray[np.int32]


class Matcher(Protocol):
    """How far an output has come in a grammar."""

    @property
    def error(self) -> str | None:
        """Why it cannot go on: a limit is exceeded, or a token was not allowed."""

    @property
    def is_stopped(self) -> bool:
        """Nothing can follow."""

    def accept(self, token_id: int) -> None: ...

    def allows(self, token_id: int) -> bool:
        """Whether it may come next."""

    def forced(self) -> list[int]:
        """Tokens that have to come next: the text that the grammar leaves no choice about, as the tokenizer cuts it."""


class Constraint:
    """Follows one output. Its tokens are a function of the request alone: where text is forced, so are its tokens.

    Args:
        matcher: None: no grammar.
        thinking: None: the grammar holds from the first token on.
        eos_ids: that a grammar's output does not end with while it thinks.
        ignores_eos: nor otherwise, as long as it can go on.
        allowed: the only tokens that it may have, whatever else holds. None: all. With them, no text of a grammar is
            forced: other tokens than the tokenizer's may spell it.

    Attributes:
        forced: tokens that have to come next, in order; more may be forced after them.
    """

    def __init__(
        self,
        matcher: Matcher | None,
        thinking: Thinking | None,
        eos_ids: tuple[int, ...],
        *,
        ignores_eos: bool = False,
        allowed: tuple[int, ...] | None = None,
    ) -> None:
        self.forced: list[int] = []
        self._matcher = matcher
        self._thinking = thinking
        self._eos_ids = eos_ids
        self._ignores_eos = ignores_eos
        self._allowed = allowed
        self._allowed_row: MaskRow | None = None  # made when the width of a mask is known
        self._error: str | None = None
        self._num_thought = 0
        self._tail: tuple[int, ...] = ()  # of the thinking, as long as what closes it
        self._phase: Literal["opening", "thinking", "after"] = "after"
        if thinking is None:
            self._force()
        elif thinking.begun:
            self._begin_thinking(())
        else:
            self._phase = "opening"

    @property
    def error(self) -> str | None:
        return self._error if self._matcher is None or self._error else self._matcher.error

    @property
    def is_over(self) -> bool:
        """Nothing is constrained any more."""
        return self._phase == "after" and self._matcher is None and self._allowed is None

    @property
    def has_ended(self) -> bool:
        """The grammar is complete, and nothing can follow."""
        return self._phase == "after" and self._matcher is not None and self._matcher.is_stopped

    @property
    def matcher(self) -> Matcher | None:
        """The matcher that computes the mask of the next token, before `amend`; None: `amend` is enough."""
        return None if self.forced or self._phase == "thinking" else self._matcher

    def accept(self, token_id: int) -> None:
        """The next token of the output. If it is not allowed, `error` says so."""
        if self._phase == "opening":
            self._open(token_id)
        elif self._phase == "thinking":
            self._think(token_id)
        elif self._matcher is not None:
            self._matcher.accept(token_id)
            del self.forced[:1]
            if not self.forced:
                self._force()

    def amend(self, row: MaskRow) -> None:
        """Finishes the mask of the next token, a bit a token.

        Args:
            row: i32[⌈V / 32⌉], as `matcher` has filled it; all ones if there is none.
        """
        self._restrict(row)
        if self.forced:
            row[:] = 0
            _allow(row, self.forced[0])
            self._restrict(row)
        elif self._phase == "opening" and self._matcher is not None and self._thinking is not None:
            _allow(row, self._thinking.start_ids[0])
            self._restrict(row)
        elif self._phase == "thinking" and self._matcher is not None:
            _forbid(row, self._eos_ids)
        elif self._ignores_eos and self._matcher is not None:
            rest = row.copy()
            _forbid(rest, self._eos_ids)
            if rest.any():
                row[:] = rest

    def _restrict(self, row: MaskRow) -> None:
        """Forbids all but the allowed tokens."""
        if self._allowed is None:
            return
        if self._allowed_row is None:
            self._allowed_row = np.zeros_like(row)
            for token_id in self._allowed:
                _allow(self._allowed_row, token_id)
        row &= self._allowed_row

    def _open(self, token_id: int) -> None:
        assert self._thinking is not None
        starts = self._thinking.start_ids
        if token_id == starts[0] and (self._matcher is None or not self._matcher.allows(token_id)):
            self._begin_thinking(starts[1:])
            return
        self._phase = "after"
        if self._matcher is not None:
            self._matcher.accept(token_id)
            self._force()

    def _begin_thinking(self, opening: tuple[int, ...]) -> None:
        """Enter the thinking phase.

        Args:
            opening: tokens of the opening tag that are still to come.
        """
        self._phase = "thinking"
        self._num_thought = -len(opening)
        self.forced = list(opening)
        self._bound()

    def _think(self, token_id: int) -> None:
        assert self._thinking is not None
        end = self._thinking.end_ids
        self._num_thought += 1
        self._tail = (*self._tail, token_id)[-len(end) :]
        del self.forced[:1]
        if self._tail == end:
            self._phase = "after"
            self.forced = []
            if self._matcher is not None:
                self._force()
        else:
            self._bound()

    def _bound(self) -> None:
        """Force the rest of the closing tag, once the tokens that identify it are there or the budget is used up."""
        assert self._thinking is not None
        budget, end, telling = self._thinking.budget, self._thinking.end_ids, self._thinking.num_telling
        if telling is not None and not self.forced and self._tail[-telling:] == end[:telling]:
            self.forced = list(end[telling:])
            return
        if budget is None or self.forced or self._num_thought < budget:
            return
        length = next(n for n in range(len(end), -1, -1) if self._tail[len(self._tail) - n :] == end[:n])
        self.forced = list(end[length:])

    def _force(self) -> None:
        if self._matcher is None or self._allowed is not None:
            return
        if self._matcher.error is None and not self._matcher.is_stopped:
            self.forced = self._matcher.forced()
            if len(self.forced) > MAX_FORCED:
                self._error = (
                    f"it leaves no choice about the next {len(self.forced)} tokens, over the limit of {MAX_FORCED}"
                )


def _allow(row: MaskRow, token_id: int) -> None:
    row.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


def _forbid(row: MaskRow, token_ids: Iterable[int]) -> None:
    for token_id in token_ids:
        row.view(np.uint32)[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
