"""Requests whose time is up, and how they end."""

import heapq

from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.scheduling.state.request import Request, RequestStatus


class Deadlines:
    """Requests by deadline; those that ended earlier are dropped when they are met, or when they are the most."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str, Request]] = []
        self._compact_at = 64

    def add(self, request: Request) -> None:
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, request.given.request_id, request))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if entry[2].status is not RequestStatus.FINISHED]
            heapq.heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + 64

    def take_expired(self, now: float) -> list[Request]:
        """Requests that have not ended and should have by `now` (seconds since the epoch)."""
        expired = []
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if request.status is not RequestStatus.FINISHED:
                expired.append(request)
        return expired


def timeout_reason(request: Request) -> FinishReason:
    """How a request ends whose time is up."""
    state = "waiting in the queue" if request.scheduled is None else f"{request.num_output_tokens} tokens generated"
    return FinishReason(
        "abort",
        message=f"The request did not finish within its timeout of {request.given.options.timeout:g} s ({state}); "
        "raise timeout (or --request-timeout), or request fewer tokens",
        status=504,
    )
