"""Endpoint and Call: a route with what answers it, and one request to it."""

import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, Self, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive

from palladio.http.generation.context import Context
from palladio.http.generation.params import request_options
from palladio.http.observability.records.request_record import Origin
from palladio.http.security.callers import Caller
from palladio.http.wire.body import JsonBody, describe_body, parse_noting, until_disconnect
from palladio.http.wire.field_warnings import NONE_PASS, Warnings
from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.runtime.interface.request.request_options import RequestOptions

T = TypeVar("T")
B = TypeVar("B", bound=WireModel)

_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Attributes:
    request_id: the request's name, unless its body gives one.
    route: the path that was asked for.
    shown_id: the X-Request-Id that goes back.
    caller: who asks.
    headers: the headers of a distributed trace.
    receive: messages of the client, whose body has been read; None: there is no client that could go away.
    is_background: it only takes what other requests leave, see RequestOptions.
    timeout: seconds that it has where its body does not say; None: as the server's flags have it.
    warnings: of its body.
    """

    request_id: str
    route: str
    shown_id: str
    caller: Caller
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    receive: Receive | None = None
    is_background: bool = False
    timeout: float | None = None
    warnings: Warnings = NONE_PASS

    @classmethod
    def of(cls, request: Request, warnings: Warnings = NONE_PASS) -> Self:
        """Make the call of a request.

        Args:
            warnings: warnings about the request's body.
        """
        headers = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        state = request.state
        return cls(
            *(state.request_id, request.url.path, state.shown_id, state.caller, headers, request.receive),
            warnings=warnings,
        )

    def origin(self, *, no_logs: bool | None = None, log_metrics: bool | None = None) -> Origin:
        """Return what the observer records. Arguments are the body's fields."""
        return Origin(self.route, self.shown_id, self.headers, not no_logs, log_metrics is not False, self.caller.owner)

    def options(self, body: PromptFields) -> RequestOptions:
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
            HttpError: the client went away.
        """
        return await (work if self.receive is None else until_disconnect(self.receive, work))


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint(Generic[B]):
    """A route whose body is a model, and what answers it; batches call it without HTTP in between.

    Attributes:
        path: of the route.
        model: what its body is.
        answer: what it does; of a body without `stream: true` it gives a plain response.
    """

    path: str
    model: type[B]
    answer: Callable[[Context, Call, B], Awaitable[Response]]

    async def run(self, context: Context, call: Call, body: object) -> Response:
        """Answer a request.

        Args:
            body: decoded JSON.

        Raises:
            PalladioError, HttpError: as the route.
        """
        parsed, warnings = parse_noting(self.model, body, context.note_warning)
        return await self.answer(context, dataclasses.replace(call, warnings=warnings), parsed)

    def add_to(self, router: APIRouter, context: Context, *, by_put: bool = False) -> None:
        """Adds the route.

        Args:
            by_put: the method is PUT, and the schema leaves the route out.
        """
        reader = JsonBody(self.model, context.note_warning)

        async def route(request: Request) -> Response:
            body, warnings = await reader.read(request)
            return await self.answer(context, Call.of(request, warnings), body)

        class DirectRoute(APIRoute):
            """Without FastAPI's own reading of requests, which has nothing to do here and takes a tenth of a start."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                return route

        router.add_api_route(
            self.path,
            route,
            route_class_override=DirectRoute,
            name=self.path.removeprefix("/v1").strip("/").replace("/", "_"),
            methods=["PUT" if by_put else "POST"],
            response_model=None,
            include_in_schema=not by_put,
            openapi_extra=describe_body(self.model),
        )
