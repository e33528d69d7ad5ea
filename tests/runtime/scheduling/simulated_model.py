"""The model of the simulated device: which tokens follow, what a row computes, and a grammar."""

import dataclasses
import itertools
from collections.abc import Iterator

from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledRow

EOS = 7


def next_token(tokens: list[int]) -> int:
    """The simulated model: depends on the last token and the position."""
    return (tokens[-1] * 31 + len(tokens) * 17) % 101


def expected_output(prompt: list[int], max_tokens: int, stop_ids: frozenset[int], min_tokens: int = 0) -> list[int]:
    tokens = list(prompt)
    for i in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids and i + 1 >= min_tokens:
            break
    return tokens[len(prompt) :]


class ScriptedConstraint:
    """A grammar as the scheduler sees it: after a token that 3 divides, as many tokens as `jump_length` says are known.

    It stands in for Constraint.
    """

    error: str | None = None
    is_over = False

    def __init__(self) -> None:
        self.forced: list[int] = []
        self.has_ended = False

    def accept(self, token_id: int) -> None:
        assert not self.has_ended
        if self.forced:
            assert token_id == self.forced[0], "a forced token was not sampled"
            del self.forced[0]
        if not self.forced and token_id % 3 == 0:
            self.forced = [200 + token_id + i for i in range(jump_length(token_id))]
        self.has_ended = not self.forced and token_id % 41 == 0


def jump_length(token_id: int) -> int:
    return token_id // 3 % 9 if token_id < 200 else 0


def expected_constrained_output(
    prompt: list[int], max_tokens: int, stop_ids: frozenset[int], min_tokens: int = 0
) -> list[int]:
    tokens, constraint = list(prompt), ScriptedConstraint()
    for i in range(max_tokens):
        tokens.append(constraint.forced[0] if constraint.forced else next_token(tokens))
        if tokens[-1] in stop_ids and i + 1 >= min_tokens:
            break
        constraint.accept(tokens[-1])
        if constraint.has_ended:
            break
    return tokens[len(prompt) :]


def proposals(tokens: list[int]) -> Iterator[int]:
    """Drafts after these tokens: some are right, then all are wrong."""
    known = list(tokens)
    for _ in range((3 * len(tokens) + tokens[-1]) % 5):
        known.append(next_token(known))
        yield known[-1]
    yield from itertools.repeat(300)


@dataclasses.dataclass(frozen=True)
class Part:
    """A row in one forward pass: the request's tokens, drafts included; the positions that it computes; the drafts."""

    tokens: list[int]
    positions: range
    drafts: list[int] = dataclasses.field(default_factory=list)

    def content(self, row: ScheduledRow, position: int) -> tuple[str | None, tuple[object, ...]]:
        """Return the content of a position: the salt, and all tokens up to it or what stands in their place."""
        tokens: list[object] = list(self.tokens[: position + 1])
        for part in row.request.given.media:
            for place in range(part.start, min(part.stop, position + 1)):
                tokens[place] = (part.digest, part.is_whole, place - part.start)
        return row.request.given.options.cache_salt, tuple(tokens)
