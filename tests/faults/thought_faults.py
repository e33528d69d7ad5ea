"""Faults of outputs that end inside a thought; see `faults`."""

from tests.faults.fault import Fault

_TESTS = ("tests/runtime/scheduling/test_closed_thoughts.py", "tests/runtime/grammar/test_constraint.py")
_FAMILIES = ("tests/http/reasoning/test_closing.py",)

THOUGHT_FAULTS = (
    Fault(
        "the end of sequence that closes a thought stays in the output",
        "runtime/scheduling/state/new_tokens.py",
        "output.cut(count - 1)",
        "output.cut(count)",
        _TESTS,
    ),
    Fault(
        "what the device has sampled after the end of a thought is taken",
        "runtime/scheduling/state/request.py",
        "self.constraint, self.closed = constraint, constraint.closed\n        self.void()",
        "self.constraint, self.closed = constraint, constraint.closed",
        _TESTS,
    ),
    Fault(
        "an answer may begin with the end of the output",
        "runtime/grammar/constraint.py",
        "self.closed, self._must_answer = why, True",
        "self.closed, self._must_answer = why, False",
        _TESTS,
    ),
    Fault(
        "a call inside a thought is closed like a thought",
        "http/reasoning/family.py",
        "(self.end.strip(), *(self.closers if has_tools else ()))",
        "(self.end.strip(),)",
        _FAMILIES,
    ),
)
