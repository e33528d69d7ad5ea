"""How busy an engine is, and how many replicas that asks for.

Ray pickles this file by value and runs it in Serve's controller: it imports nothing of ours.
"""

import math
from typing import Any

LOAD = "palladio_load"


def load_of(num_running: int, num_waiting: int, num_slots: int, kv_usage: float) -> float:
    """An engine's load: 1.0 is as much as it runs at a time. What waits adds to it, so it has no upper limit.

    Args:
        num_slots: requests that it runs at most.
        kv_usage: share of the KV cache that running requests use. Long requests fill it before the slots are full;
            then each that waits counts as one of these.
    """
    by_slots = (num_running + num_waiting) / num_slots
    by_cache = kv_usage * (num_running + num_waiting) / max(1, num_running)
    return max(by_slots, by_cache)


class LoadPolicy:
    """Serve's autoscaling policy: as many replicas as give each the load `target`.

    Serve itself applies its delays, factors and limits to what this says.
    """

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas, and Serve's state, which is empty.

        Args:
            context: Serve's AutoscalingContext.
        """
        loads = list(((context.aggregated_metrics or {}).get(LOAD) or {}).values())
        if not loads:  # no replica has said anything yet
            return float(context.target_num_replicas), {}
        # A replica that has not said anything yet, because it is new, counts as the others do on average.
        total = sum(loads) / len(loads) * max(len(loads), context.current_num_replicas)
        return float(max(1, math.ceil(total / self._target - 1e-9))), {}
