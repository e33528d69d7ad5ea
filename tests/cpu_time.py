"""CPU time of a piece of work, for tests of how it grows: the least of some turns, for a busy machine adds to it."""

import gc
import time
from collections.abc import Callable


def least_cpu_seconds(work: Callable[[], object], *, enough: float = 0.0, turns: int = 5) -> float:
    """CPU seconds of `work`, the least of `turns`; the first turn below `enough` is the last.

    Without garbage collection, whose time goes with what all tests before have left.
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
