"""Who may profile, who may change the running model, and who may watch the engine: those who run the server.

A trace slows the engine down and fills memory and disk; other weights, or none, concern every caller.
"""

import ipaddress

from starlette.requests import Request

from palladio.http.security.callers import ADMIN, Caller, Callers
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.errors import ErrorBody, HttpError

_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")  # then the peer is not who asks


def check_admin_access(config: HttpConfig, request: Request, action: str) -> None:
    """With an admin key, KeyAuth has seen to it. Without any key, those who are on this machine may.

    Args:
        action: what is asked for, as a message begins with it: "profiling".

    Raises:
        HttpError: 403.
    """
    if config.admin_api_keys:
        return
    if config.api_keys or config.api_key_file is not None:
        raise _refusal(f"{action} needs an admin key: start the server with --admin-api-key")
    if not _is_local(request):
        raise _refusal(
            f"without keys, {action} is only for clients on the server's own machine (and not through a proxy): start "
            "the server with --admin-api-key, and send that key"
        )


def check_operator_access(callers: Callers, caller: Caller) -> None:
    """Check that the caller may operate the server: with the admin key; on servers without one, any caller of the
    server may, and then sees what its key may see.

    Raises:
        HttpError: 401: no key came; 403: a key of others.
    """
    if not callers.has_admin_keys or caller.owner == ADMIN:
        return
    if not caller.owner:
        raise HttpError(
            ErrorBody(
                401,
                "the dashboard needs the admin key (--admin-api-key): send 'Authorization: Bearer KEY' or "
                "'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        )
    raise _refusal("this API key is valid, but the dashboard needs the admin key (--admin-api-key)")


def _refusal(message: str) -> HttpError:
    return HttpError(ErrorBody(403, message, code="admin_key_required"))


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
