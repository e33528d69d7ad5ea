"""Call: one request to a route, whoever makes it: a client over HTTP, or the server itself for a line of a batch."""

import dataclasses
from collections.abc import Coroutine, Mapping
from typing import Any, Self, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from palladio.http.generation.generation import until_disconnect
from palladio.http.generation.sampling import request_options
from palladio.http.observability.request_record import Origin
from palladio.http.security.caller import Caller
from palladio.http.wire.field_names import RequestNames
from palladio.http.wire.protocol import SamplingFields
from palladio.http.wire.protocol_embeddings import EmbeddingRequest
from palladio.runtime.interface.generation_request import RequestOptions

T = TypeVar("T")

_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Attributes:
    request_id: the request's name, unless its body gives one.
    route: the path that was asked for.
    shown_id: the X-Request-Id that goes back.
    caller: who asks.
    headers: those that carry a distributed trace.
    receive: messages of the client, whose body has been read; None: there is nobody who could go away.
    is_background: it only takes what other requests leave, see RequestOptions.
    timeout: seconds that it has where its body does not say; None: as the server's flags have it.
    names: what the client calls the fields of its request, for errors.
    """

    request_id: str
    route: str
    shown_id: str
    caller: Caller
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    receive: Receive | None = None
    is_background: bool = False
    timeout: float | None = None
    names: RequestNames = dataclasses.field(default_factory=RequestNames)

    @classmethod
    def of(cls, request: Request) -> Self:
        headers = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        state = request.state
        names = RequestNames.of(request.scope)
        return cls(
            state.request_id, request.url.path, state.shown_id, state.caller, headers, request.receive, names=names
        )

    def origin(self, *, no_logs: bool | None = None, log_metrics: bool | None = None) -> Origin:
        """For the observer. Args: as the body gives them."""
        return Origin(self.route, self.shown_id, self.headers, not no_logs, log_metrics is not False, self.caller.owner)

    def options(self, body: SamplingFields | EmbeddingRequest) -> RequestOptions:
        """
        Raises:
            InvalidRequestError: a value is out of range.
        """
        options = request_options(body)
        timeout = self.timeout if options.timeout is None else options.timeout
        return dataclasses.replace(options, background=self.is_background, timeout=timeout, owner=self.caller.owner)

    def detached(self) -> Self:
        """The same for work that goes on when the client goes away."""
        return dataclasses.replace(self, receive=None)

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and cancels it if the client goes away first.

        Raises:
            HttpError: the client went away; nobody will read this.
        """
        return await (work if self.receive is None else until_disconnect(self.receive, work))
