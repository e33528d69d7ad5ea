"""New tokens: what was read of a step's rows, and what it means for their requests: whether one ends, and which tokens
its grammar forces after them."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.outputs.token_output import FinishReason, PlainTokens, TokenOutput
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.slot_columns import Counts, Mask, SlotColumns, Slots, TokenIds

NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)

MakeRoom = Callable[[Request, int], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class SampledRows:
    """What was read of the rows of a batch that sample, which are its first.

    Attributes:
        token_ids: i32[B, N]. counts: i64[B], how many of them each row has; None: all.
        alone: by the row's number, the output of each of which there is more to tell; of any row of the batch.
    """

    token_ids: TokenIds
    counts: Counts | None
    alone: Mapping[int, TokenOutput]

    def num_tokens(self, number: int) -> int:
        """How many new tokens one row has."""
        return len(self.alone[number].token_ids) if number in self.alone else len(self.tokens(number))

    def tokens(self, number: int) -> list[int]:
        """New tokens of one row; empty if it does not sample."""
        if number >= len(self.token_ids):
            return []
        tokens: list[int] = self.token_ids[number].tolist()
        return tokens if self.counts is None else tokens[: self.counts[number]]

    def output(self, number: int, request: Request) -> TokenOutput:
        """The output of one row.

        Args:
            request: the row's request.
        """
        return self.alone[number] if number in self.alone else request.output(self.tokens(number))

    def plain(self, columns: SlotColumns, slots: Slots, taken: Mask, num_taken: int) -> PlainTokens:
        """For the front: of the rows that nothing follows from, their tokens.

        Args:
            slots: of the rows that decode, the first ones.
            taken: from which of them nothing follows.
            num_taken: how many these are.
        """
        if self.counts is None and num_taken == len(taken):
            token_ids = self.token_ids[:num_taken]
            counts = None if token_ids.shape[1] == 1 else [token_ids.shape[1]] * num_taken
            return PlainTokens(columns.request_ids[slots].tolist(), token_ids.tobytes(), counts)
        given = taken if self.counts is None else taken & (self.counts[: len(taken)] > 0)
        numbers = np.flatnonzero(given)
        request_ids: list[str] = columns.request_ids[slots[numbers]].tolist()
        return PlainTokens.of(request_ids, [self.tokens(number) for number in numbers.tolist()])


def take_tokens(request: Request, output: TokenOutput, make_room: MakeRoom) -> FinishReason | None:
    """Adds a step's tokens to their request, and those that its grammar forces after them where that saves steps.

    Args:
        output: what was read of the step; loses what comes after the request's end, and gets what is forced.
        make_room: whether it pays to add this many known tokens to a request at once; if so, it gets the pages.

    Returns:
        How the request ends, if it does. The caller ends it.
    """
    token_ids, finish = output.token_ids, output.finish
    if request.max_tokens == 0:  # only its prompt was to be computed
        token_ids.clear()
        return finish or request.finish_reason()
    for count, token_id in enumerate(token_ids, 1):
        request.append_token(token_id)
        ended = request.finish_reason()
        if ended is not None and (finish is None or count < len(token_ids)):
            output.cut(count)
            return ended
    if request.constraint is not None and finish is None:
        return _constrain(request, token_ids, make_room)
    return finish


def constraint_failure(request: Request, reason: str) -> FinishReason:
    """How a request ends whose grammar cannot go on."""
    return FinishReason(
        "abort",
        message=f"the grammar cannot continue after {request.num_output_tokens} tokens: {reason}",
        status=400,
        param="grammar",
    )


def _constrain(request: Request, token_ids: list[int], make_room: MakeRoom) -> FinishReason | None:
    """Tells the constraint of the last token; appends to token_ids what is jumped over."""
    constraint = request.constraint
    assert constraint is not None
    constraint.accept(request.token_ids[-1])
    if constraint.is_over:
        request.drop_constraint()
        return None
    finish = _verdict(request, constraint)
    if finish is not None:
        return finish
    forced = constraint.forced[: request.max_tokens - request.num_output_tokens]
    if len(forced) > 1 and request.may_jump and make_room(request, len(forced)):
        request.void()
        for token_id in forced:
            request.append_token(token_id)
            token_ids.append(token_id)
            finish = request.finish_reason()
            if finish is not None:
                break
            constraint.accept(token_id)
        request.begin_prefill()
    return finish or _verdict(request, constraint)


def _verdict(request: Request, constraint: Constraint) -> FinishReason | None:
    """Whether the constraint ends the request."""
    if constraint.error is not None:
        return constraint_failure(request, constraint.error)
    return FinishReason("stop") if constraint.has_ended else None
