"""WaitingQueue: the requests that wait; background requests stand in a line of their own, behind all others."""

import itertools
from collections.abc import Iterator
from typing import Self

from palladio.runtime.interface.config import SchedulePolicy
from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.scheduling.radix_cache import RadixCache
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.waiting_queue import PolicyQueue


class WaitingQueue:
    """A PolicyQueue, as the scheduler sees it.

    Args:
        foreground: in the order that --schedule-policy says.
        background: whose requests have their turn when nobody waits in the other one.
    """

    def __init__(self, foreground: PolicyQueue, background: PolicyQueue) -> None:
        self._foreground = foreground
        self._background = background

    @classmethod
    def create(
        cls,
        policy: SchedulePolicy,
        cache: RadixCache,
        page_size: int,
        *,
        low_values_first: bool = False,
        seed: int = 0,
    ) -> Self:
        """Args: as for PolicyQueue; of the foreground.

        Background requests are taken in the order that they came; with the policy priority in that of their priority
        too: it says which of them give way to which, and those that do must stand behind.
        """
        behind: SchedulePolicy = "priority" if policy == "priority" else "fcfs"
        return cls(
            PolicyQueue(policy, cache, page_size, low_values_first=low_values_first, seed=seed),
            PolicyQueue(behind, cache, page_size, low_values_first=low_values_first),
        )

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background)

    def __iter__(self) -> Iterator[Request]:
        return itertools.chain(self._foreground, self._background)

    @property
    def num_foreground(self) -> int:
        return len(self._foreground)

    @property
    def num_retracted(self) -> int:
        """Requests that lost their pages and have not got them back; they stand at the head of their line."""
        lines = (self._foreground, self._background)
        return sum(sum(1 for _ in itertools.takewhile(lambda r: r.num_retractions > 0, line)) for line in lines)

    def check_room(self, limit: int | None, num_elsewhere: int = 0) -> None:
        """
        Args:
            limit: of waiting requests, lines of batches excepted; None: there is none.
            num_elsewhere: requests that wait, or will, but not here.

        Raises:
            OverloadedError: so many wait already.
        """
        if limit is not None and self.num_foreground + num_elsewhere >= limit:
            raise OverloadedError(
                f"The queue is full ({limit} requests wait, --max-queued-requests {limit}); try again later"
            )

    def add(self, request: Request) -> None:
        """See PolicyQueue.add."""
        self._line(request).add(request)

    def put_back(self, request: Request) -> None:
        """See PolicyQueue.put_back."""
        self._line(request).put_back(request)

    def remove(self, request: Request) -> None:
        """See PolicyQueue.remove."""
        self._line(request).remove(request)

    def refresh(self) -> None:
        """See PolicyQueue.refresh."""
        self._foreground.refresh()

    def peek(self) -> Request | None:
        """Who is next; the same until the lines change or are refreshed."""
        return (self._foreground if len(self._foreground) else self._background).peek()

    def take(self) -> Request:
        """Takes the next request out of its line; somebody waits."""
        return (self._foreground if len(self._foreground) else self._background).take()

    def _line(self, request: Request) -> PolicyQueue:
        return self._background if request.options.background else self._foreground
