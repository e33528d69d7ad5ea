"""FinishedRequests: the records of the last requests, by their ids."""

import collections
from typing import Final

from palladio.http.request_record import RequestRecord

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
        self._by_id: dict[str, RequestRecord] = {}

    def add(self, record: RequestRecord) -> None:
        if self._size == 0:
            return
        self._records.append(record)
        self._num_samples += len(record.samples)
        for name in _names(record):
            self._by_id[name] = record
        while len(self._records) > self._size or (
            self._num_samples > SAMPLES_EACH * self._size and len(self._records) > 1
        ):
            self._forget(self._records.popleft())

    def find(self, request_id: str) -> RequestRecord | None:
        return self._by_id.get(request_id)

    def _forget(self, record: RequestRecord) -> None:
        self._num_samples -= len(record.samples)
        for name in _names(record):
            if self._by_id.get(name) is record:
                del self._by_id[name]


def _names(record: RequestRecord) -> tuple[str, ...]:
    """By which it is found; of equal ones the last counts."""
    return (*record.ids, record.origin.shown_id, record.name)
