"""API keys, as pure ASGI middleware (a BaseHTTPMiddleware would halve the streams' speed)."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from palladio.http.errors import ErrorBody, route_path
from palladio.http.security.api_keys import ApiKeys

OPEN_PATHS = frozenset(
    ("/health", "/ping", "/health_generate", "/ready", "/version", "/metrics")
)  # probes carry no keys
CONTROL_PATHS = frozenset(("/flush_cache", "/abort_request", "/start_profile", "/stop_profile"))


class KeyAuth:
    """Answers 401 unless the request brings a key, as a bearer or as x-api-key. Probes and OPTIONS pass.

    Args:
        keys: of all routes; none: only control routes need one.
        admin_keys: of the control routes, which then take no others; good for all routes. None: they are like others.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, admin_keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys
        self._admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        is_control = path in CONTROL_PATHS and bool(self._admin_keys)
        needs_key = (bool(self._keys) or is_control) and path not in OPEN_PATHS and scope["method"] != "OPTIONS"
        if not needs_key or self._accepts(Headers(scope=scope), is_control=is_control):
            await self._app(scope, receive, send)
            return
        kind = "admin key (--admin-api-key)" if is_control else "API key"
        body = ErrorBody(
            401,
            f"wrong or missing {kind}: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await body.response(path)(scope, receive, send)

    def _accepts(self, headers: Headers, *, is_control: bool) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer] if scheme.lower() == "bearer" else []
        given += [headers["x-api-key"]] if "x-api-key" in headers else []
        known = (self._admin_keys,) if is_control else (self._keys, self._admin_keys)
        raw = [key.strip(" \t").encode("latin-1") for key in given]  # as the header's bytes came in, 0xA0 among them
        matches = [keys.accept(key) for keys in known for key in raw]  # all of them: constant time
        return any(matches)
