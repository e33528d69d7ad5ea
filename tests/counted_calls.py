"""Counted calls of a function, for tests of how its work grows."""

import sys
from collections.abc import Callable
from types import FrameType


def counted_calls(function: Callable[[], object]) -> int:
    """Count the calls of functions in this thread, including C functions and steps of generators."""
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
