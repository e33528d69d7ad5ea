"""The share of its max_tokens that a request is expected to use: what admission reserves room for.

Starts high, sinks while no request is retracted, jumps up when one is. SGLang's scheme and constants, so that
--schedule-conservativeness means the same.
"""

from collections.abc import Iterable

from palladio.runtime.scheduling.request import Request

INIT_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600  # decode steps from the initial ratio to the lowest
CLIP_MAX_NEW_TOKENS = 4096  # longer requests are counted as this long: few run to their limit
RETRACT_DECODE_STEPS = 20  # after a retraction, expect the others to run at least this much further


class NewTokenRatio:
    """Attributes:
    value: in [0, 1].
    """

    def __init__(self, conservativeness: float) -> None:
        self.value = min(INIT_RATIO * conservativeness, 1.0)
        self._lowest = self.value * MIN_RATIO_FACTOR
        self._decay = INIT_RATIO * (1 - MIN_RATIO_FACTOR) / DECAY_STEPS

    def expected_output(self, request: Request) -> int:
        """Tokens that the request is expected to generate from here."""
        return int(min(request.max_remaining_tokens, CLIP_MAX_NEW_TOKENS) * self.value)

    def decay(self) -> None:
        """After each decode step."""
        self.value = max(self.value - self._decay, self._lowest)

    def raise_for(self, running: Iterable[Request]) -> None:
        """After a retraction that left these requests running."""
        done = planned = 0
        for request in running:
            done += request.num_output_tokens + RETRACT_DECODE_STEPS
            planned += min(request.max_tokens, CLIP_MAX_NEW_TOKENS)
        self.value = min(1.0, max(self.value, done / max(planned, 1)))
