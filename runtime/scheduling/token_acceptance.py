"""What a sampled token means for its request: its output, what its grammar makes of it, and whether it ends."""

import dataclasses
from collections.abc import Callable, Sequence

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.outputs import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.scheduling.request import Request

NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)


@dataclasses.dataclass(frozen=True, slots=True)
class StepTokens:
    """What the device sampled for a batch, row by row; of a decode step that ran several times, once.

    Attributes:
        token_ids: one for each row that samples.
        is_finite: the same; False where the logits were NaN or infinite, so that the token means nothing.
        logprobs: the same, where any row asked for them.
        prompt_logprobs: for each row: of the prompt tokens that this step's rows predict; None where not asked for.
        embeddings: in place of tokens: float32, little-endian, of each row that samples.
    """

    token_ids: Sequence[int]
    is_finite: Sequence[bool]
    logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    embeddings: list[bytes] | None = None


MakeRoom = Callable[[Request, int], bool]


def take_token(request: Request, tokens: StepTokens, i: int, make_room: MakeRoom) -> TokenOutput:
    """Adds the token of row i to its request, and those that its grammar forces after it where that saves steps.

    Args:
        make_room: whether it pays to add so many known tokens to a request at once; if so, it gets the pages.

    Returns:
        What is new, with `finish` where it ends; the request has not been told of that.
    """
    output = TokenOutput(
        request.given.request_id, [], cached_tokens=request.num_cached_tokens, num_retractions=request.num_retractions
    )
    if request.max_tokens > 0:
        token_id = tokens.token_ids[i]
        request.num_pending -= 1
        request.token_ids.append(token_id)
        output.token_ids.append(token_id)
        if tokens.logprobs is not None and (logprob := tokens.logprobs[i]) is not None:
            output.logprobs = [logprob]
    if not tokens.is_finite[i]:
        output.finish = NOT_FINITE
    else:
        if tokens.embeddings is not None:
            output.embedding = tokens.embeddings[i]
        output.finish = request.finish_reason()
        if request.constraint is not None and output.finish is None and request.max_tokens > 0:
            output.finish = _constrain(request, output.token_ids, make_room)
    return output


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
        request.constraint = None
        return None
    finish = _verdict(request, constraint)
    if finish is not None:
        return finish
    forced = constraint.forced[: request.max_tokens - request.num_output_tokens]
    if len(forced) > 1 and request.may_jump and make_room(request, len(forced)):
        request.void_pending()
        for token_id in forced:
            request.token_ids.append(token_id)
            token_ids.append(token_id)
            finish = request.finish_reason()
            if finish is not None:
                break
            constraint.accept(token_id)
        request.prefill_end = len(request.token_ids)
    return finish or _verdict(request, constraint)


def _verdict(request: Request, constraint: Constraint) -> FinishReason | None:
    """Whether the constraint ends the request."""
    if constraint.error is not None:
        return constraint_failure(request, constraint.error)
    return FinishReason("stop") if constraint.has_ended else None
