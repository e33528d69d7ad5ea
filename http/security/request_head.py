"""What a request's head must not leave open: where its body ends, which host it means, and who sends it. The parser is
strict about lines; these are the rules of RFC 9110 and 9112 that it does not have."""

import re
from collections.abc import Sequence

from palladio.http.wire.errors import ErrorBody

CLOSE = {"Connection": "close"}

RawHeaders = list[tuple[bytes, bytes]]  # names in small letters

_ONCE = (b"host", b"origin")
# Of these, some layers in front of a server take the first line and some the last one.
_ALIKE = (b"authorization", b"x-api-key", b"content-type", b"referer", b"sec-fetch-site")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)(/[^?#]*)?(\?[^#]*)?")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?", re.ASCII)


def invalid_http(message: str) -> ErrorBody:
    return ErrorBody(400, message, code="invalid_http", headers=CLOSE)


def head_fault(version: str, url: bytes, headers: RawHeaders) -> ErrorBody | None:
    """Return why a request's head cannot be served; None: it can.

    Args:
        version: such as "1.1".
    """
    if version not in ("1.0", "1.1"):
        message = f"HTTP/{version} is not served; use HTTP/1.1"
        return ErrorBody(505, message, code="http_version_not_supported", headers=CLOSE)
    hosts = _values(headers, b"host")
    if version == "1.1" and not hosts:
        return invalid_http("the header Host is missing")
    for name in _ONCE:
        if len(_values(headers, name)) > 1:
            return invalid_http(f"the header {_shown(name)} is given twice")
    for name in _ALIKE:
        if len(set(_values(headers, name))) > 1:
            return invalid_http(f"the header {_shown(name)} is given twice, with different values")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        return invalid_http(f"the header Host is not a host and port: {_quoted(hosts[0])}")
    return _target_fault(url) or _coding_fault(version, headers) or _expect_fault(version, headers)


def take_absolute(url: bytes, headers: RawHeaders) -> bytes:
    """Return the path and query of a request's target. The host of an absolute target replaces the header Host.

    Args:
        headers: changed in place.
    """
    found = _ABSOLUTE.fullmatch(url)
    if found is None:
        return url
    headers[:] = [(b"host", found[1]), *(header for header in headers if header[0] != b"host")]
    return (found[2] or b"/") + (found[3] or b"")


def _target_fault(url: bytes) -> ErrorBody | None:
    if b"#" in url:
        return invalid_http("the request target has a fragment (#), which is not sent to servers")
    if url.startswith(b"/") or url == b"*":
        return None
    found = _ABSOLUTE.fullmatch(url)
    if found is None or not found[1] or _HOST.fullmatch(found[1]) is None:
        return invalid_http(f"the request target is neither a path nor an http URL without a user: {_quoted(url)}")
    return None


def _coding_fault(version: str, headers: RawHeaders) -> ErrorBody | None:
    """A body is in chunks or has a length: with anything else, two readers may disagree about its end."""
    if not _values(headers, b"transfer-encoding"):
        return None
    codings = _members(headers, b"transfer-encoding")
    if version == "1.0":
        return invalid_http("HTTP/1.0 has no Transfer-Encoding; send Content-Length")
    if not codings or codings[-1] != b"chunked":
        return invalid_http(f"the last Transfer-Encoding must be chunked, not {_quoted(b', '.join(codings))}")
    if len(codings) > 1:
        message = f"Transfer-Encoding {_quoted(b', '.join(codings))} is not supported; send chunked alone"
        return ErrorBody(501, message, code="unsupported_transfer_encoding", headers=CLOSE)
    return None


def _expect_fault(version: str, headers: RawHeaders) -> ErrorBody | None:
    unknown = [member for member in _members(headers, b"expect") if member != b"100-continue"]
    if not unknown or version == "1.0":
        return None
    message = f"Expect {_quoted(unknown[0])} is not supported; only 100-continue is"
    return ErrorBody(417, message, code="expectation_failed", headers=CLOSE)


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for found, value in headers if found == name]


def _members(headers: RawHeaders, name: bytes) -> list[bytes]:
    """Return the members of a list header in lower case, without empty ones, as the standard says."""
    members = (member.strip().lower() for value in _values(headers, name) for member in value.split(b","))
    return [member for member in members if member]


def _shown(name: bytes) -> str:
    return name.decode("ascii").title()


def _quoted(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
