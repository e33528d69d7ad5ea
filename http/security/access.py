"""Who may use the server, by its flags: the middleware for browsers, and the line for the log."""

from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from palladio.http.security.browsers import LOCAL_ORIGIN, BrowserGuard, HostRules, is_loopback
from palladio.http.security.callers import Callers
from palladio.http.settings.http_config import HttpConfig


def cors(config: HttpConfig, callers: Callers) -> Middleware:
    """With keys, any origin is harmless: browsers add none by themselves."""
    origins: dict[str, Any] = {"allow_origins": config.allowed_origins}
    if config.allowed_origins is None:
        origins = {"allow_origins": ("*",)} if callers.has_keys else {"allow_origin_regex": LOCAL_ORIGIN}
    return Middleware(
        CORSMiddleware,
        **origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
        expose_headers=["X-Request-Id", "Retry-After"],
    )


def browser_guard(config: HttpConfig, callers: Callers) -> list[Middleware]:
    """None with keys, unless names of the server are given."""
    if callers.has_keys and config.allowed_hosts is None:
        return []
    hosts = HostRules.of(config.host, config.allowed_hosts)
    return [Middleware(BrowserGuard, hosts=hosts, origins=config.allowed_origins, is_open=not callers.has_keys)]


def describe_access(config: HttpConfig, callers: Callers) -> str:
    """A line for the log, without any key."""
    if callers.has_keys:
        return callers.describe()
    origins = "localhost" if config.allowed_origins is None else ", ".join(config.allowed_origins)
    hosts = ["localhost", "addresses", *(config.allowed_hosts or ())]
    if not is_loopback(config.host):
        hosts.insert(2, "local network names")
    admin = f" ({callers.describe()})" if callers.has_admin_keys else ""
    return (
        f"No --api-key: anyone who can reach --host {config.host} can use this server{admin}. Allowed web page "
        f"origins: {origins} (--allowed-origins). Allowed host names: {', '.join(hosts)} (--allowed-hosts)"
    )
