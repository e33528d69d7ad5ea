"""Bearer keys, as pure ASGI middleware (a BaseHTTPMiddleware would halve the streams' speed)."""

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from palladio.http.errors import ErrorBody

OPEN_PATHS = frozenset(("/health", "/health_generate", "/ready", "/version", "/metrics"))  # probes carry no keys


class BearerAuth:
    """Answers 401 unless the request brings one of the keys. Probes and OPTIONS pass."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        body = ErrorBody(
            401,
            "wrong or missing API key: send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await body.response()(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] == "OPTIONS" or path in OPEN_PATHS:
            return True
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1")  # as the header's bytes came in
        matches = [hmac.compare_digest(given, known) for known in self._keys]  # all of them: constant time
        return scheme.lower() == "bearer" and any(matches)
