"""Hosts that have met, for tests: threads stand for hosts."""

import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from palladio.runtime.multihost.coordinator import HostCoordinator, HostWorker
from palladio.runtime.multihost.host_check import Rendezvous

CONFIG_DIGEST = {"palladio": "1", "--page-size": "16"}


def free_address() -> tuple[str, int]:
    """Here, at a port that is free, and so is the one after it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found, contextlib.suppress(OSError):
            port = found.getsockname()[1]
            with socket.create_server(("127.0.0.1", port + 1)):
                return "127.0.0.1", port


class Ends:
    """The way in which a host must end."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.came = threading.Event()

    def __call__(self, message: str) -> None:
        self.messages.append(message)
        self.came.set()

    def wait(self) -> str:
        assert self.came.wait(10), "nobody said so"
        return self.messages[0]


def invite(address: tuple[str, int], rank: int, num_hosts: int = 2, **changes: Any) -> Rendezvous:
    values = {"timeout": 10.0, "silence": 30.0, "config_digest": CONFIG_DIGEST, **changes}
    return Rendezvous(rank=rank, num_hosts=num_hosts, address=address, **values)


class Group:
    """Host 0 and the others, who have met."""

    def __init__(self, address: tuple[str, int], num_hosts: int, **changes: Any) -> None:
        self.ends = [Ends() for _ in range(num_hosts)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            members = [
                pool.submit(HostWorker.meet, invite(address, rank, num_hosts, **changes), self.ends[rank])
                for rank in range(1, num_hosts)
            ]
            self.leader = HostCoordinator.meet(
                invite(address, 0, num_hosts, **changes), {"random_seed": 5}, self.ends[0]
            )
            met = [member.result() for member in members]
        self.members = [member for member, _ in met]
        self.welcomes = [welcome for _, welcome in met]


@contextlib.contextmanager
def group(address: tuple[str, int] | None = None, num_hosts: int = 2, **changes: Any) -> Iterator[Group]:
    found = Group(address or free_address(), num_hosts, **changes)
    try:
        yield found
    finally:
        found.leader.close()
