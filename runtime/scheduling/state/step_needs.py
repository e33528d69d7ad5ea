"""What a request asks of the steps that sample for it."""

import enum

from palladio.runtime.scheduling.state.request import Request


class StepNeeds(enum.Flag):
    """What makes a whole step more expensive as soon as one of its rows asks for it."""

    RANDOM = enum.auto()
    FULL = enum.auto()
    MASK = enum.auto()


NO_NEEDS = StepNeeds(0)


def needs_of(request: Request) -> StepNeeds:
    """What the request asks of the next step that samples for it."""
    params, needs = request.given.params, NO_NEEDS
    if not params.is_greedy:
        needs |= StepNeeds.RANDOM
    if params.logprobs is not None or params.has_history:
        needs |= StepNeeds.FULL
    if request.constraint is not None:
        needs |= StepNeeds.MASK  # the host has to know each token before the next one is sampled
    return needs
