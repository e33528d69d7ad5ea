"""RunningRequests: the requests of a data-parallel rank that run, and the slots that they hold."""

from collections.abc import Iterator

from palladio.runtime.scheduling.request import Request


class RunningRequests:
    """In the order of their admission. The scheduler adds and removes; others look.

    Args:
        num_slots: that requests may hold; slot 0 is nobody's.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._requests: list[Request] = []
        self._free_slots = list(range(num_slots, 0, -1))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Gives the request a slot."""
        request.slot = self._free_slots.pop()
        self._requests.append(request)

    def remove(self, request: Request) -> None:
        """Takes the request's slot."""
        self._requests.remove(request)
        self._free_slots.append(request.slot)
        request.slot = 0

    def check_integrity(self) -> None:
        """
        Raises:
            AssertionError: a slot is held twice, or lost.
        """
        slots = sorted(self._free_slots + [request.slot for request in self._requests])
        assert slots == list(range(1, self._num_slots + 1)), "a slot is lost or used twice"
