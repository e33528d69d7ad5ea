"""What browsers may do: which hosts and origins are served."""

import dataclasses
import functools
import ipaddress
import re
import socket
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Self

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from palladio.http.security.callers import OPEN_PATHS
from palladio.http.wire.errors import ErrorBody, Guard, route_path

_PRIVATE = (".local", ".internal", ".home.arpa", ".svc")  # no names of the Internet; the last one is Kubernetes's
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")


@dataclasses.dataclass(frozen=True, slots=True)
class HostRules:
    """Attributes:
    names: in lower case; "*.example.com" is every name below that one, and "*" any name.
    takes_private: also takes names without a dot, and names of domains that cannot be registered.
    """

    names: frozenset[str]
    takes_private: bool

    @classmethod
    def of(cls, bound_to: str, allowed: Iterable[str] | None) -> Self:
        """Make the rules.

        Args:
            bound_to: --host. On an address that other machines reach, names that only a local network knows are
                allowed: an attacker who can create one reaches the server without a browser.
            allowed: --allowed-hosts, in addition.
        """
        is_local = is_loopback(bound_to)
        names = {bound_to, socket.gethostname(), *(allowed or ())}
        return cls(frozenset(map(_plain, names if is_local else {*names, _full_name()})), takes_private=not is_local)

    def allow(self, host: str) -> bool:
        """Whether the rules allow a host.

        Args:
            host: the header, with or without a port. No browser sends an empty one.
        """
        found = _HOST.fullmatch(host.strip())
        if found is None:
            return False
        name = _plain(found[1])
        if not name or "*" in self.names or name in self.names or is_loopback(name) or _address(name) is not None:
            return True
        if any(name.endswith(pattern[1:]) for pattern in self.names if pattern.startswith("*.")):
            return True
        return self.takes_private and ("." not in name or name.endswith(_PRIVATE))


def is_loopback(name: str) -> bool:
    """localhost, a name below it, or an address of this machine alone."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


@functools.cache
def _full_name() -> str:
    """With the domain, if the machine has one. May wait for DNS."""
    return socket.getfqdn()


LOCAL_ORIGIN = r"https?://(?:(?:[a-z0-9-]+\.)*localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?"
CHANGING_GETS = frozenset(("/flush_cache",))  # routes that do something, whatever the method
UPLOADS = frozenset(("/v1/files",))  # that take forms

_FETCH_SITE = "sec-fetch-site"


class BrowserGuard(Guard):
    """Refuses requests to a name that may be somebody else's, and what pages of other origins ask for, even where they
    could not read the answer. Open routes and preflights pass: the first reveal nothing, CORS answers the others.

    Args:
        hosts: names of the server.
        origins: origins whose pages may call; None: those of this machine. The server's own pages always may.
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
