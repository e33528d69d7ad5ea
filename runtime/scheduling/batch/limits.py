"""SchedulerLimits: how much a step holds, and how much the scheduler holds of requests."""

import dataclasses

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.scheduling.state.request import Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Attributes:
    max_running: requests that run at once (device slots 1 … max_running).
    max_queued: waiting requests; None: no limit.
    max_step_tokens: tokens of one prefill step.
    splits_prompts: whether a prompt may be prefilled over several steps; if not, none is longer than a step.
    mixes: whether running requests decode in prefill steps too; else the two take turns.
    num_decode_steps: tokens that a request decodes in one step. joined_passes: that it decodes in a step of few
        requests, see `Buckets.several`.
    num_drafts: tokens that are proposed for a request at once, see Proposer; 0: none.
    preemption_threshold: a waiting request takes the place of a running one if it is more urgent by more than this;
        None: never.
    low_values_first: low priority values are the urgent ones.
    conservativeness: see --schedule-conservativeness.
    """

    max_running: int
    max_queued: int | None
    max_step_tokens: int
    splits_prompts: bool = True
    mixes: bool = False
    num_decode_steps: int = 1
    joined_passes: int = 1
    num_drafts: int = 0
    preemption_threshold: int | None = None
    low_values_first: bool = False
    conservativeness: float = 1.0

    @property
    def decode_chunk(self) -> int:
        """Tokens from the first one that a decode row may compute to the last one: it may start as many drafts late."""
        return max(self.num_decode_steps, self.joined_passes, 1 + 2 * self.num_drafts)

    def check_whole(self, request: Request) -> None:
        """
        Raises:
            InvalidRequestError: a part that one step has to compute is longer than what a step leaves to a prompt, if
                all others decode in it.
        """
        most = self.max_step_tokens - (min(self.max_running - 1, self.max_step_tokens // 2) if self.mixes else 0)
        if request.longest_whole > most:
            raise InvalidRequestError.of(
                "{param}: a part of {length} tokens cannot be divided, and one step computes at most {most} tokens of "
                "a prompt beside running requests; raise --chunked-prefill-size",
                param="prompt",
                length=request.longest_whole,
                most=most,
            )
