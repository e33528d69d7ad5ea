"""The flags of the scheduler."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields

SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "random", "lof", "priority", "shortest-prefill-first", "hrrn"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Scheduling of requests.

    Attributes:
        max_running_requests: Maximum requests decoding at the same time, summed over all data-parallel ranks. Default:
            256 per rank on TPU and GPU, 64 on CPU; fewer where the states of layers (Qwen3-Next) would take more than
            30 % of what weights leave.
        max_queued_requests: Maximum waiting requests; further requests get a 503. Default: no limit.
        max_prefill_tokens: Maximum prompt tokens in one prefill step.
        chunked_prefill_size: Prompts are split into chunks of this many tokens; -1: never. Default: 8192 on GPU, 1024
            on CPU, 2048 on TPU (8192 with experts; on v5e at least 512 a device). Lower it if prompts stall streams.
        schedule_policy: Which waiting request is admitted next: fcfs, the one that has waited longest; lpm, the one
            with the longest cached prefix; dfs-weight, neighbours in the prefix tree, the most requested branch first;
            shortest-prefill-first, the one with the fewest prompt tokens to compute; hrrn, the one with the highest
            response ratio: prompt tokens computed while it waited, over those that it has to compute; random; lof, the
            one with the largest max_tokens; priority, the one with the highest `priority`. Every policy but priority
            gives each eighth turn to the request that has waited longest, so that none starves.
        schedule_low_priority_values_first: With --schedule-policy priority, the lowest value is the most urgent.
        priority_scheduling_preemption_threshold: With --schedule-policy priority, a waiting request preempts a running
            one if its priority is higher by more than this.
        schedule_conservativeness: Scales the KV cache reserved for the future output of running requests. Raise it
            above 1 if requests are often retracted (preempted).
        enable_mixed_chunk: Prefill and decode share a step. Default: on, except on CPU.
        disable_mixed_chunk: Prefill and decode alternate.
        num_continuous_decode_steps: Decode steps per program call, before the host reads their tokens. Higher values
            hide host overhead but waste steps after a request finishes. Default: 1, but up to 4 in steps of at most 4
            requests, one event for each token, of a small model on CPU.
        background_slowdown: How much batch lines may slow other requests down, as a fraction (0.15: 15 %). 0: batch
            lines run only while the server is otherwise idle, and in the padding of other requests' steps.
        request_timeout: Timeout in seconds of requests that set no `timeout`; after it a request ends with an error.
            Batch lines are exempt. Default: no timeout.
        disable_overlap_schedule: Read each step's tokens before dispatching the next step. Slower, with the same
            tokens.
    """

    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = None
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_mixed_chunk: bool = False
    num_continuous_decode_steps: int | None = None
    background_slowdown: float = 0.15
    request_timeout: float | None = None
    disable_overlap_schedule: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
