"""RunningRequests: which of clients' requests are with the engine. Their ids are a namespace of each owner."""

import contextlib
from collections.abc import Iterator, Sequence

from palladio.http.security.caller import Caller
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.generation_request import GenerationRequest


class RunningRequests:
    """By owner and the id that the client gave or got."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], Sequence[GenerationRequest]] = {}

    @contextlib.contextmanager
    def track(self, name: str, requests: Sequence[GenerationRequest]) -> Iterator[None]:
        """While it is open, the request is found.

        Args:
            requests: one a prompt, all of one owner.

        Raises:
            InvalidRequestError: the owner has a request of this id.
        """
        key = requests[0].options.owner, name
        if key in self._requests:
            raise InvalidRequestError(f"a request with id {name!r} is already running", param="rid")
        self._requests[key] = requests
        try:
            yield
        finally:
            del self._requests[key]

    def engine_ids(self, caller: Caller, request_id: str | None) -> list[str]:
        """Of the caller's requests. Args: request_id: of a request, or of a prompt of one; None: of all."""
        return [
            request.scoped_id
            for (owner, name), requests in self._requests.items()
            if caller.may_see(owner)
            for request in requests
            if request_id in (None, name, request.request_id)
        ]
