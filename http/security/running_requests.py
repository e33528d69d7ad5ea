"""RunningRequests: which of clients' requests are with the engine. Their ids are a namespace of each owner."""

import contextlib
from collections.abc import Iterator, Sequence

from palladio.http.security.caller import Caller
from palladio.runtime.front.sglang_api import Job
from palladio.runtime.interface.errors import InvalidRequestError


def engine_id(job: Job) -> str:
    """What the engine, which knows one namespace, calls a job. No owner's name has a slash."""
    owner = job.options.owner
    return f"{owner}/{job.request_id}" if owner else job.request_id


class RunningRequests:
    """By owner and the id that the client gave or got."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Sequence[Job]] = {}

    @contextlib.contextmanager
    def track(self, name: str, jobs: Sequence[Job]) -> Iterator[None]:
        """While it is open, the request is found.

        Args:
            jobs: one a prompt, all of one owner.

        Raises:
            InvalidRequestError: the owner has a request of this id.
        """
        key = jobs[0].options.owner, name
        if key in self._jobs:
            raise InvalidRequestError(f"a request with id {name!r} is already running", param="rid")
        self._jobs[key] = jobs
        try:
            yield
        finally:
            del self._jobs[key]

    def engine_ids(self, caller: Caller, request_id: str | None) -> list[str]:
        """Of the caller's requests. Args: request_id: of a request, or of a prompt of one; None: of all."""
        return [
            engine_id(job)
            for (owner, name), jobs in self._jobs.items()
            if caller.may_see(owner)
            for job in jobs
            if request_id in (None, name, job.request_id)
        ]
