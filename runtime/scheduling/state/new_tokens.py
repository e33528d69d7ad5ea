"""What new tokens mean for their request: whether it ends, and which tokens its grammar forces after them."""

from collections.abc import Callable

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.scheduling.state.request import Request

NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)


MakeRoom = Callable[[Request, int], bool]


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
