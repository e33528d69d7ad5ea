"""Who may take part: host 0 lets in the hosts that were started as it was, and names the one that was not."""

import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import Mapping

from palladio.runtime.interface.errors import ConfigError, HostLostError
from palladio.runtime.multihost.links import Frame, Link, accept, differences

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What a host knows of the meeting.

    Attributes:
        rank: of this host. num_hosts: that are expected, this one included.
        address: of host 0: name and port.
        timeout: seconds that hosts wait for each other. silence: seconds without a word after which one is lost.
        config_digest: name → value of what has to be the same everywhere.
    """

    rank: int
    num_hosts: int
    address: tuple[str, int]
    timeout: float
    silence: float
    config_digest: Mapping[str, str]


class HostCheck:
    """Lets the other hosts in."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._links: dict[int, Link] = {}
        self._problem = ""

    def receive(self, listener: socket.socket) -> dict[int, Link]:
        """Wait for the others; return their links by rank.

        Raises:
            ConfigError: one was started with something else.
            HostLostError: one does not come.
        """
        rendezvous = self._rendezvous
        deadline = time.monotonic() + rendezvous.timeout
        host, port = rendezvous.address
        others = rendezvous.num_hosts - 1
        logger.info("Host 0 listens on %s:%d and waits for %d more host%s", host, port, others, "s" * (others > 1))
        accept(listener, deadline, self._admits, wanted=lambda: 0 if self._problem else others - len(self._links))
        if self._problem:
            self._refuse_all(self._problem)
            raise ConfigError(self._problem)
        missing = [rank for rank in range(1, rendezvous.num_hosts) if rank not in self._links]
        if missing:
            names = ", ".join(map(str, missing))
            message = (
                f"host{'s' * (len(missing) > 1)} {names} of {rendezvous.num_hosts} did not connect to {host}:{port} "
                f"within {rendezvous.timeout:g} s (--dist-timeout); start the same command there with --node-rank "
                f"{names}"
            )
            self._refuse_all(message)
            raise HostLostError(message)
        return dict(sorted(self._links.items()))

    def _admits(self, frame: Frame, link: Link) -> bool:
        if frame.kind != "hello":
            return False
        rendezvous, head = self._rendezvous, frame.head
        rank = int(head["rank"])
        link.is_to(f"host {rank} ({head['name']}, {link.address})")
        if head["num_hosts"] != rendezvous.num_hosts:
            problem = f"--nnodes is {rendezvous.num_hosts} on host 0 and {head['num_hosts']} on {link.name}"
        elif different := differences(rendezvous.config_digest, head["config_digest"]):
            problem = f"host 0 and {link.name} have different settings: {'; '.join(different)}"
        elif rank in self._links and self._links[rank].is_open():
            problem = f"--node-rank {rank} was given to {self._links[rank].name} and to {link.name}"
        else:
            logger.info("%s connected", link.name)
            self._links[rank] = link
            return True
        self._problem = problem
        _refuse(link, problem)
        return False

    def _refuse_all(self, message: str) -> None:
        for link in self._links.values():
            _refuse(link, message)


def _refuse(link: Link, message: str) -> None:
    with contextlib.suppress(OSError):
        link.send(Frame({"kind": "refused", "message": message}))
    link.close()
