"""Constraint: thinking first, then the grammar; what is forced, and what a mask says."""

import numpy as np
import pytest

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.request.grammar_spec import Thinking

VOCAB = 70  # three words
EOS = 2
OPEN, CLOSE, LINE = 60, 61, 62


class Words:
    """A matcher: the output is one of these lists of tokens."""

    error: str | None = None

    def __init__(self, *words: list[int]) -> None:
        self.words = words
        self.taken: list[int] = []

    def _rests(self) -> list[list[int]]:
        count = len(self.taken)
        return [word[count:] for word in self.words if word[:count] == self.taken and len(word) > count]

    @property
    def is_stopped(self) -> bool:
        return not self._rests()

    def accept(self, token_id: int) -> None:
        if not self.allows(token_id):
            self.error = f"{token_id} is not allowed"
        self.taken.append(token_id)

    def allows(self, token_id: int) -> bool:
        return any(rest[0] == token_id for rest in self._rests())

    def forced(self) -> list[int]:
        rests = self._rests()
        common = []
        for tokens in zip(*rests, strict=False):
            if len(set(tokens)) > 1:
                break
            common.append(tokens[0])
        return common


def allowed(constraint: Constraint) -> set[int]:
    """Token ids whose bit is set."""
    row = np.full(-(-VOCAB // 32), -1, np.int32)
    matcher = constraint.matcher
    if matcher is not None:
        row[:] = 0
        for token_id in range(VOCAB):
            if matcher.allows(token_id):
                row.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
    constraint.amend(row)
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def accept(constraint: Constraint, *token_ids: int) -> None:
    for token_id in token_ids:
        assert token_id in allowed(constraint)
        constraint.accept(token_id)


EVERYTHING = set(range(96))


def test_a_grammar_from_the_first_token() -> None:
    constraint = Constraint(Words([5, 40, 8], [5, 40, 9, 69]), None, (EOS,))
    assert constraint.forced == [5, 40]
    assert allowed(constraint) == {5}
    accept(constraint, 5, 40)
    assert constraint.forced == []
    assert allowed(constraint) == {8, 9}
    accept(constraint, 9)
    assert (constraint.forced, constraint.has_ended) == ([69], False)
    accept(constraint, 69)
    assert constraint.has_ended


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    constraint = Constraint(Words([5, 6], [7, 8]), None, (EOS,))
    constraint.accept(9)
    assert constraint.error == "9 is not allowed"


def test_thinking_that_the_prompt_has_opened() -> None:
    constraint = Constraint(Words([5, 6], [7]), Thinking((OPEN,), (CLOSE,), begun=True), (EOS,))
    assert allowed(constraint) == EVERYTHING - {EOS}, "an output with a grammar does not end in its thoughts"
    accept(constraint, 5, 7, OPEN, 3)
    assert not constraint.has_ended
    accept(constraint, CLOSE)
    assert allowed(constraint) == {5, 7}
    accept(constraint, 7)
    assert constraint.has_ended


def test_thinking_may_be_opened_or_not() -> None:
    thinking = Thinking((OPEN,), (CLOSE,))
    thinks, does_not = (Constraint(Words([5, 6], [7]), thinking, (EOS,)) for _ in range(2))
    assert allowed(thinks) == {5, 7, OPEN}
    accept(thinks, OPEN, 30, CLOSE, 7)
    assert thinks.has_ended
    accept(does_not, 5)
    assert does_not.forced == [6]
    accept(does_not, 6)
    assert does_not.has_ended


def test_a_grammar_that_allows_the_opening_tag_keeps_it() -> None:
    constraint = Constraint(Words([OPEN, 5], [OPEN, 6]), Thinking((OPEN,), (CLOSE,)), (EOS,))
    accept(constraint, OPEN)
    assert allowed(constraint) == {5, 6}


def test_tags_of_several_tokens() -> None:
    thinking = Thinking((10, 11, 12), (20, 21, 20, 22))
    constraint = Constraint(Words([5]), thinking, (EOS,))
    accept(constraint, 10)
    assert constraint.forced == [11, 12]
    accept(constraint, 11, 12, 20, 21, 20, 21, 20, 22)
    assert constraint.forced == [5]


@pytest.mark.parametrize("begun", [True, False])
def test_the_budget_closes_the_thinking(begun: bool) -> None:
    constraint = Constraint(Words([5]), Thinking((10, 11), (20, 21), begun=begun, budget=3), (EOS,))
    if not begun:
        accept(constraint, 10, 11)
    accept(constraint, 30, 31)
    assert constraint.forced == []
    accept(constraint, 32)
    assert constraint.forced == [20, 21]
    accept(constraint, 20, 21)
    assert constraint.forced == [5]


def test_a_tag_that_has_begun_when_the_budget_ends_is_completed() -> None:
    constraint = Constraint(None, Thinking((10,), (20, 21), begun=True, budget=2), (EOS,))
    accept(constraint, 30, 20)
    assert constraint.forced == [21]
    accept(constraint, 21)
    assert allowed(constraint) == EVERYTHING


def test_a_beginning_that_tells_is_completed() -> None:
    """gpt-oss names the final channel and may go on in two ways; from the name on there is one here."""
    thinking = Thinking((10,), (20, 21, 22), begun=True, num_telling=2)
    constraint = Constraint(Words([5]), thinking, (EOS,))
    accept(constraint, 20, 30, 20)
    assert constraint.forced == []
    accept(constraint, 21)
    assert constraint.forced == [22]
    accept(constraint, 22)
    assert constraint.forced == [5]


def test_no_budget_at_all() -> None:
    constraint = Constraint(None, Thinking((10,), (20,), begun=True, budget=0), (EOS,))
    assert allowed(constraint) == {20}
    accept(constraint, 20, 50)
    assert not constraint.has_ended
    assert constraint.matcher is None


def test_thinking_without_a_grammar_may_end_the_output() -> None:
    constraint = Constraint(None, Thinking((10,), (20,), begun=True, budget=5), (EOS,))
    assert allowed(constraint) == EVERYTHING


@pytest.mark.parametrize("words", [None, Words([7, 8])])
def test_tokens_that_may_not_stand_in_a_thought(words: Words | None) -> None:
    constraint = Constraint(words, Thinking((10,), (20,), begun=True, forbidden_ids=(30, 69)), (EOS,))
    assert allowed(constraint) == EVERYTHING - {30, 69} - ({EOS} if words else set())
    accept(constraint, 5, 20)
    assert constraint.is_over == (words is None)
    assert allowed(constraint) == ({7} if words else EVERYTHING)


def test_forbidden_tokens_bind_only_a_thought_and_never_all_that_is_allowed() -> None:
    answer = Constraint(None, Thinking((10,), (20,), forbidden_ids=(30,)), (EOS,))
    accept(answer, 30)
    assert answer.is_over
    only = Constraint(None, Thinking((10,), (20,), begun=True, forbidden_ids=(30,)), (EOS,), allowed=(30,))
    assert allowed(only) == {30}


def test_only_some_tokens_are_allowed() -> None:
    constraint = Constraint(None, None, (EOS,), allowed=(5, 40, 69))
    for token_id in (5, 40, 5, 69):
        assert allowed(constraint) == {5, 40, 69}
        constraint.accept(token_id)
    assert (constraint.is_over, constraint.has_ended, constraint.forced) == (False, False, [])


def test_allowed_tokens_and_a_grammar_hold_both() -> None:
    constraint = Constraint(Words([5, 40, 8], [5, 41, 9], [6]), None, (EOS,), allowed=(5, 41, 9))
    assert constraint.forced == [], "other tokens may spell the same text"
    accept(constraint, 5)
    assert allowed(constraint) == {41}
    accept(constraint, 41, 9)
    assert constraint.has_ended
    assert allowed(Constraint(Words([6]), None, (EOS,), allowed=(5,))) == set()


def test_allowed_tokens_hold_for_thinking_too() -> None:
    thinking = Thinking((OPEN,), (CLOSE,), begun=True, budget=2)
    constraint = Constraint(None, thinking, (EOS,), allowed=(5, CLOSE))
    assert allowed(constraint) == {5, CLOSE}
    accept(constraint, 5, 5)
    assert allowed(constraint) == {CLOSE}
    accept(constraint, CLOSE)
    assert allowed(constraint) == {5, CLOSE}
    assert allowed(Constraint(Words([5]), Thinking((OPEN,), (CLOSE,)), (EOS,), allowed=(5,))) == {5}


def test_an_end_that_is_ignored_does_not_undo_what_is_allowed() -> None:
    constraint = Constraint(Words([5], [EOS], [6]), None, (EOS,), ignores_eos=True, allowed=(EOS, 6))
    assert allowed(constraint) == {6}
    alone = Constraint(Words([5], [EOS]), None, (EOS,), ignores_eos=True, allowed=(EOS,))
    assert allowed(alone) == {EOS}


@pytest.mark.parametrize("words", [None, Words([7, 8])])
def test_an_end_of_sequence_closes_a_thought_and_an_answer_follows(words: Words | None) -> None:
    thinking = Thinking((OPEN,), (20, 21), begun=True, budget=9)
    constraint = Constraint(words, thinking, (EOS,), closing_ids=(EOS,))
    assert allowed(constraint) == EVERYTHING, "the model may say that it has thought enough"
    accept(constraint, 30, 20)
    constraint.close((20, 21), [30, 20])
    assert (constraint.closed, constraint.forced) == ("eos", [21])
    accept(constraint, 21)
    assert not constraint.is_over
    assert allowed(constraint) == ({7} if words else EVERYTHING - {EOS})
    accept(constraint, 7)
    assert constraint.is_over == (words is None)
    assert allowed(constraint) == ({8} if words else EVERYTHING)


def test_a_thought_that_nothing_followed_is_closed() -> None:
    constraint = Constraint(None, None, (), closing_ids=(EOS, 3))
    constraint.close((CLOSE, LINE), [5, 6, 7])
    accept(constraint, CLOSE, LINE)
    assert allowed(constraint) == EVERYTHING - {EOS, 3}
    accept(constraint, 5)
    assert constraint.is_over


@pytest.mark.parametrize(
    ("closing_ids", "closed", "first"), [((EOS,), "budget", EVERYTHING - {EOS}), ((), None, EVERYTHING)]
)
def test_an_answer_follows_a_budget(closing_ids: tuple[int, ...], closed: str | None, first: set[int]) -> None:
    constraint = Constraint(None, Thinking((10,), (20,), begun=True, budget=2), (EOS,), closing_ids=closing_ids)
    accept(constraint, 30, 31, 20)
    assert constraint.closed == closed
    assert allowed(constraint) == first


def test_a_thought_of_nothing_is_not_closed_for_the_model() -> None:
    constraint = Constraint(None, Thinking((10,), (20,), begun=True, budget=0), (EOS,), closing_ids=(EOS,))
    accept(constraint, 20)
    assert (constraint.closed, constraint.is_over) == (None, True)


def test_an_answer_of_which_nothing_but_an_end_is_allowed_ends() -> None:
    constraint = Constraint(None, None, (), allowed=(EOS, CLOSE), closing_ids=(EOS,))
    constraint.close((CLOSE,), [CLOSE + 1])
    accept(constraint, CLOSE)
    assert allowed(constraint) == {CLOSE}
    only = Constraint(None, None, (), allowed=(EOS,), closing_ids=(EOS,))
    only.close((EOS + 1,), [5])
    assert allowed(only) == set(), "the caller closes no thought whose mark is not allowed"
