"""How much a function does, counted, for tests of how that grows."""

import sys
from collections.abc import Callable
from types import FrameType


def counted_calls(function: Callable[[], object]) -> int:
    """Calls of functions that it makes in this thread, those of C and steps of generators included."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
