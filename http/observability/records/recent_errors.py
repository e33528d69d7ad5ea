"""RecentErrors: the last requests that failed for a reason of the server's, and the engine's own failures."""

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

from palladio.http.observability.records.request_record import Origin
from palladio.http.security.callers import Caller
from palladio.http.wire.errors import ErrorBody, HttpError, error_body, internal_error, route_path
from palladio.runtime.interface.errors import PalladioError

MAX_NOTES = 50
MAX_MESSAGE = 500  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorNote:
    """
    Attributes:
        time: seconds since the epoch, of the latest of equals.
        where: "POST /v1/completions", or "engine".
        message: as the client got it.
        status: of the HTTP answer, or that it would have had before the stream began; None: of the engine itself.
        request_id: the X-Request-Id of the latest; empty: of no request.
        owner: whose request it was; None: everybody's.
        count: of equals in a row.
    """

    time: float
    where: str
    message: str
    status: int | None = None
    request_id: str = ""
    owner: str | None = None
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Without the owner, who may be another one than who looks."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "owner"}


class RecentErrors:
    """At most MAX_NOTES, each with at most MAX_MESSAGE characters of its message.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._notes: collections.deque[ErrorNote] = collections.deque(maxlen=MAX_NOTES)

    def note_answer(self, scope: Scope, body: ErrorBody) -> None:
        """Note an error that answers a request; leave out the client's own errors."""
        state = scope["state"]
        caller: Caller | None = state.get("caller")
        owner = "" if caller is None else caller.owner
        self._note(f"{scope['method']} {route_path(scope)}", state["shown_id"], owner, body)

    def note_failure(self, origin: Origin, error: BaseException) -> None:
        """A request that was with the engine has failed; a client that went away is no error."""
        if isinstance(error, PalladioError | HttpError):
            body = error_body(error)
        elif isinstance(error, Exception):
            body = internal_error(origin.shown_id)
        else:
            return
        self._note(f"POST {origin.route}", origin.shown_id, origin.owner, body)

    def note_engine(self, message: str) -> None:
        """The engine has failed."""
        self._add(ErrorNote(self._now(), "engine", message[:MAX_MESSAGE]))

    def seen_by(self, caller: Caller) -> list[dict[str, Any]]:
        """The newest first."""
        seen = (note for note in reversed(self._notes) if note.owner is None or caller.may_see(note.owner))
        return [note.as_dict() for note in seen]

    def _note(self, where: str, request_id: str, owner: str, body: ErrorBody) -> None:
        if body.status < 500 or any(note.request_id == request_id for note in self._notes):
            return
        self._add(ErrorNote(self._now(), where[:200], body.message[:MAX_MESSAGE], body.status, request_id, owner))

    def _add(self, note: ErrorNote) -> None:
        if self._notes and _what(self._notes[-1]) == _what(note):
            note = dataclasses.replace(note, count=self._notes.pop().count + 1)
        self._notes.append(note)


def _what(note: ErrorNote) -> tuple[str, str, str | None]:
    return note.where, note.message, note.owner
