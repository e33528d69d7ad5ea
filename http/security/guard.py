"""Guard: middleware that refuses some requests, as pure ASGI (a BaseHTTPMiddleware would halve the streams' speed)."""

import abc

from starlette.types import ASGIApp, Receive, Scope, Send

from palladio.http.wire.errors import ErrorBody, route_path


class Guard(abc.ABC):
    """Subclasses say what is refused, and why."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        answer = self._app if error is None else error.response(route_path(scope))
        await answer(scope, receive, send)

    @abc.abstractmethod
    def _refusal(self, scope: Scope) -> ErrorBody | None:
        """Of an HTTP request; None: it passes."""
