"""BrowserGuard: what a web page may do to a server without keys, which a browser can reach and the page's author not.

With keys there is nothing to guard: a browser adds none by itself.
"""

import re
import urllib.parse
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from palladio.http.security.auth import OPEN_PATHS
from palladio.http.security.guard import Guard
from palladio.http.security.host_rules import HostRules
from palladio.http.wire.errors import ErrorBody, route_path

LOCAL_ORIGIN = r"https?://(?:(?:[a-z0-9-]+\.)*localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?"
CHANGING_GETS = frozenset(("/flush_cache",))  # routes that do something, whatever the method
UPLOADS = frozenset(("/v1/files",))  # that take forms

_FETCH_SITE = "sec-fetch-site"


class BrowserGuard(Guard):
    """Refuses requests to a name that may be somebody else's, and what pages of other origins ask for, even where they
    could not read the answer. Open routes and preflights pass: the first tell nothing, CORS answers the others.

    Args:
        hosts: names of the server.
        origins: that may call; None: those of this machine. The server's own pages may.
        is_open: there are no keys. With keys only the host counts.
    """

    def __init__(self, app: ASGIApp, hosts: HostRules, origins: Sequence[str] | None, *, is_open: bool) -> None:
        super().__init__(app)
        self._hosts = hosts
        self._origins = origins
        self._is_open = is_open

    def _refusal(self, scope: Scope) -> ErrorBody | None:
        path, method, headers = route_path(scope), scope["method"], Headers(scope=scope)
        if path in OPEN_PATHS or method == "OPTIONS":
            return None
        for host in headers.getlist("host"):
            if not self._hosts.allow(host):
                return self._host_error(host)
        if not self._is_open:
            return None
        changes = method not in ("GET", "HEAD") or path in CHANGING_GETS
        origin = headers.get("origin")
        if origin is None and changes and "referer" in headers:
            origin = _origin_of(headers["referer"])
        if origin is not None and not self._allows(origin, headers.get("host", "")):
            return _origin_error(origin)
        if not changes:
            return None
        if method in ("GET", "HEAD"):
            return _get_error(path) if _may_be_browser(headers) else None
        if origin is None and headers.get(_FETCH_SITE) in ("cross-site", "same-site"):
            return _origin_error(headers[_FETCH_SITE])
        if _is_browser(headers) and path not in UPLOADS and _has_body(headers) and not _is_json(headers):
            message = "requests from browsers must have the content type application/json"
            return ErrorBody(415, message, code="unsupported_media_type")
        return None

    def _host_error(self, host: str) -> ErrorBody:
        message = (
            f"host {host[:100]!r} is not allowed: use localhost or the server's IP address, or add this name to "
            "--allowed-hosts"
        )
        return ErrorBody(403, f"{message}, or with --api-key" if self._is_open else message, code="host_not_allowed")

    def _allows(self, origin: str, host: str) -> bool:
        if _split(origin).netloc.lower() == host.lower() != "":
            return True
        if self._origins is None:
            return re.fullmatch(LOCAL_ORIGIN, origin) is not None
        return origin in self._origins or "*" in self._origins


def _is_browser(headers: Headers) -> bool:
    return any(name in headers for name in ("origin", "referer", _FETCH_SITE))


def _may_be_browser(headers: Headers) -> bool:
    """What a page loads as an image has none of these headers, if the page and the address are made for it; but then
    it cannot change the browser's name either, and all of them call themselves so."""
    return _is_browser(headers) or headers.get("user-agent", "").startswith("Mozilla/")


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _is_json(headers: Headers) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _origin_of(referer: str) -> str:
    parts = _split(referer)
    return f"{parts.scheme}://{parts.netloc}"


def _split(url: str) -> urllib.parse.SplitResult:
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:
        return urllib.parse.SplitResult("", "", "", "", "")


def _origin_error(origin: str) -> ErrorBody:
    message = (
        f"origin {origin[:100]!r} is not allowed, because this server has no API key: add the origin to "
        "--allowed-origins, or set --api-key"
    )
    return ErrorBody(403, message, code="origin_not_allowed")


def _get_error(path: str) -> ErrorBody:
    return ErrorBody(403, f"browsers must use POST for {path}", code="origin_not_allowed")
