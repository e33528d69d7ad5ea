"""Who needs a page when, of requests that get a token a step: known without a look at their columns."""

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int64]

_MANY = 128  # steps, where nobody needs any page


class PageHeadroom:
    """How far requests that get a token a step are from their next page, as long as no other step is planned.

    Attributes:
        room: i64[B], tokens for which each has pages, when these were last looked at.
        left: i64[B], tokens until it is complete.
        num_steps: since then, when the first of them has no room.
        places, slots: of those that are to have a page.
    """

    def __init__(self, room: Counts, left: Counts) -> None:
        self.room, self.left = room, left
        self.num_steps = int(room.min(initial=_MANY))
        self.places = self.slots = np.zeros(0, np.intp)

    def full(self, slots: Slots, margin: int) -> Slots:
        """Once the steps are over: who needs a page now, or before so many more steps are over; nobody, if one of them
        has to be looked at: it is complete. Args: slots: of all."""
        self.room -= self.num_steps
        self.left -= self.num_steps
        self.num_steps = 0
        places = np.flatnonzero(self.room <= margin)
        room, left = self.room[places], self.left[places]
        self.places = places[room < left] if left.min(initial=1) > 0 else places[:0]
        self.slots = slots[self.places]
        return self.slots

    def add_page(self, page_size: int) -> None:
        """They have it."""
        places = self.places
        self.room[places] = np.minimum(self.room[places] + page_size, self.left[places])
        self.num_steps = int(self.room.min(initial=_MANY))
