"""FinishedRequests: the records of the last requests, by their ids."""

import collections
from typing import Final

from palladio.http.observability.request_record import RequestRecord
from palladio.http.security.caller import Caller

SAMPLES_EACH: Final = 8  # of a remembered request, on average: one request may have thousands


class FinishedRequests:
    """Remembers so many requests; each is found by its own id, by those of its prompts, and by its X-Request-Id, the
    latest of equals.

    Args:
        size: how many; fewer if they have more than SAMPLES_EACH samples on average.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_samples = 0
        self._records: collections.deque[RequestRecord] = collections.deque()
        self._by_id: dict[str, list[RequestRecord]] = {}  # the latest comes last

    def add(self, record: RequestRecord) -> None:
        if self._size == 0:
            return
        self._records.append(record)
        self._num_samples += len(record.samples)
        for name in set(record.names):
            self._by_id.setdefault(name, []).append(record)
        while len(self._records) > self._size or (
            self._num_samples > SAMPLES_EACH * self._size and len(self._records) > 1
        ):
            self._forget(self._records.popleft())

    def find(self, request_id: str, caller: Caller) -> RequestRecord | None:
        records = reversed(self._by_id.get(request_id, ()))
        return next((record for record in records if caller.may_see(record.origin.owner)), None)

    def _forget(self, record: RequestRecord) -> None:
        self._num_samples -= len(record.samples)
        for name in set(record.names):
            records = self._by_id[name]
            records.remove(record)  # the first: it is the oldest of all
            if not records:
                del self._by_id[name]
