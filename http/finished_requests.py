"""FinishedRequests: the records of the last requests, by their ids."""

import collections

from palladio.http.request_record import RequestRecord


class FinishedRequests:
    """Remembers so many requests; each is found by its own id and by its X-Request-Id, the latest of equals.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: collections.deque[RequestRecord] = collections.deque()
        self._by_id: dict[str, RequestRecord] = {}

    def add(self, record: RequestRecord) -> None:
        if self._size == 0:
            return
        self._records.append(record)
        self._by_id[record.origin.shown_id] = record
        self._by_id[record.name] = record
        if len(self._records) > self._size:
            oldest = self._records.popleft()
            for name in (oldest.origin.shown_id, oldest.name):
                if self._by_id.get(name) is oldest:
                    del self._by_id[name]

    def find(self, request_id: str) -> RequestRecord | None:
        return self._by_id.get(request_id)
