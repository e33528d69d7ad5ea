"""HostRules: by which names a request may call this server, against DNS rebinding.

A page of http://evil.example can have its name point to this server, and is then of one origin with it: CORS does not
hold it back, and it looks like any client. What it cannot change is the name that the browser sends as Host, and names
that nobody on the Internet can own, and addresses, cannot be used so.
"""

import dataclasses
import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Self

_PRIVATE = (".local", ".internal", ".home.arpa", ".svc")  # no names of the Internet; the last one is Kubernetes's
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")


@dataclasses.dataclass(frozen=True, slots=True)
class HostRules:
    """Attributes:
    names: in small letters; "*.example.com" is every name below that one, and "*" any name.
    takes_private: names without a dot as well, and of those domains that nobody can register.
    """

    names: frozenset[str]
    takes_private: bool

    @classmethod
    def of(cls, bound_to: str, allowed: Iterable[str] | None) -> Self:
        """Args: bound_to: --host. On an address that others reach, names that only a local network knows are as good
        as any: whoever can make one reaches the server without a browser. allowed: --allowed-hosts, in addition.
        """
        is_local = is_loopback(bound_to)
        names = {bound_to, socket.gethostname(), *(allowed or ())}
        return cls(frozenset(map(_plain, names if is_local else {*names, _full_name()})), takes_private=not is_local)

    def allow(self, host: str) -> bool:
        """Args: host: of the header, with or without a port. An empty one is no browser's."""
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
