"""What a scheduler is told to keep to."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Attributes:
    max_running: requests that run at once (device slots 1 … max_running).
    max_queued: waiting requests; None: no limit.
    max_step_tokens: tokens of one prefill step.
    splits_prompts: whether a prompt may be prefilled over several steps; if not, none is longer than a step.
    mixes: whether running requests decode in prefill steps too; else the two take turns.
    num_decode_steps: tokens that a request decodes in one step.
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
    preemption_threshold: int | None = None
    low_values_first: bool = False
    conservativeness: float = 1.0
