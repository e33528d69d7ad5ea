"""Which copies a step makes of the states that layers keep: see state_snapshots."""

import dataclasses
from typing import NamedTuple

from palladio.runtime.scheduling.state.request import Request


@dataclasses.dataclass(slots=True, eq=False)
class SnapshotCopy:
    """A copy of a request's state, which a step makes behind the last token that it computes.

    Attributes:
        source: the request's slot. slot: that of the snapshot; 0: it is not the copy's any more.
        num_pages: of tokens that the state is of. is_confirmed: the step has run.
    """

    request: Request
    source: int
    slot: int
    num_pages: int
    is_confirmed: bool = False

    def confirm(self) -> None:
        """The step has run."""
        self.is_confirmed = True

    def leave(self) -> int:
        """Gives up the slot, and returns it."""
        slot, self.slot = self.slot, 0
        return slot


class StateCopies(NamedTuple):
    """What a step copies of states, in this order.

    Attributes:
        before: snapshots into slots, as (from, to), before it computes anything. after: slots into snapshots.
    """

    before: list[tuple[int, int]]
    after: list[SnapshotCopy]
