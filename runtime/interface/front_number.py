"""The front processes of one engine have numbers: each engine-side id, and each question, tells whose it is.

An engine-side id is RID~SERIAL, RID~SERIAL-INDEX of n samples, with the front's mark before the serial if there are
several fronts. A serial is never used twice, so what an aborted request may still send cannot be taken for output of a
later one with the same RID.

Numbers begin at 1 and are never used twice, so nothing of a front that ended can be taken for its successor's. 0 is a
front that is alone; of several, it is the parent, which owns the engine and serves no requests.
"""

from typing import Final

PARENT: Final = 0
_CALLS = 40  # bits of a question's own number


def id_mark(front: int) -> str:
    """What stands before the serial in an engine-side id."""
    return "" if front == PARENT else f"{front:x}."


def front_of_id(engine_id: str) -> int:
    front, dot, _ = engine_id.rpartition("~")[2].partition(".")
    return int(front, 16) if dot else PARENT


def name_of_id(engine_id: str) -> str:
    """What its front calls the request: all samples have the same name."""
    return engine_id.rpartition("~")[0]


def first_call(front: int) -> int:
    """The id of the front's first question. The one before it is nobody's: its answer is ignored."""
    return (front << _CALLS) + 1


def front_of_call(call_id: int) -> int:
    return call_id >> _CALLS
