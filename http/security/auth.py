"""API keys."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from palladio.http.security.caller import ADMIN
from palladio.http.security.callers import Callers
from palladio.http.security.guard import Guard
from palladio.http.wire.errors import ErrorBody, route_path

OPEN_PATHS = frozenset(  # probes carry no keys
    (
        *("/health", "/healthz", "/ping", "/livez", "/ready", "/readyz"),
        *("/health_generate", "/version", "/metrics"),
    )
)
CONTROL_PATHS = frozenset(("/flush_cache", "/abort_request", "/start_profile", "/stop_profile"))


class KeyAuth(Guard):
    """Answers 401 unless the request brings a key, as a bearer or as x-api-key. Probes and OPTIONS pass. Who asks
    becomes `request.state.caller`."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        super().__init__(app)
        self._callers = callers

    def _refusal(self, scope: Scope) -> ErrorBody | None:
        path, callers = route_path(scope), self._callers
        caller = callers.find(_given_keys(Headers(scope=scope)))
        is_control = path in CONTROL_PATHS and callers.has_admin_keys
        needs_key = (callers.has_keys or is_control) and path not in OPEN_PATHS and scope["method"] != "OPTIONS"
        is_enough = caller is not None and (not is_control or caller.owner == ADMIN)
        if not needs_key or is_enough:
            scope["state"]["caller"] = caller or callers.of_owner("")
            return None
        kind = "admin key (--admin-api-key)" if is_control else "API key"
        return ErrorBody(
            401,
            f"wrong or missing {kind}: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _given_keys(headers: Headers) -> list[bytes]:
    """As the headers' bytes came in, 0xA0 among them."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [bearer] if scheme.lower() == "bearer" else []
    given += [headers["x-api-key"]] if "x-api-key" in headers else []
    return [key.strip(" \t").encode("latin-1") for key in given]
