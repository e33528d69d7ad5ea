"""CPU time of a piece of work, for tests of how it grows: the least of some rounds, since a busy machine adds to it."""

import gc
import time
from collections.abc import Callable


def least_cpu_seconds(work: Callable[[], object], *, enough: float = 0.0, turns: int = 5) -> float:
    """Return the CPU seconds of `work`, the least of `turns` rounds; the first round below `enough` is the last.

    Garbage collection is off, since its time depends on the leftovers of earlier tests.
    """
    least = float("inf")
    gc.disable()
    try:
        for _ in range(turns):
            begun = time.process_time()
            work()
            least = min(least, time.process_time() - begun)
            if least < enough:
                break
    finally:
        gc.enable()
    return least
