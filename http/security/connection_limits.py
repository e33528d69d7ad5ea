"""ConnectionLimits: how many connections a server has, and how many and how slow ones it takes."""

import dataclasses

NUM_SPARE = 64  # connections over the limit that are kept to be answered, with a probe's answer or a 503; more are cut


class ConnectionLimits:
    """Limits of the connections of a server.

    Args:
        read_timeout: seconds for a request's head.
        write_timeout: seconds in which some bytes of an answer must go out.
        max_connections: connections that are served; None: no limit.
    """

    def __init__(self, read_timeout: float, write_timeout: float, max_connections: int | None = None) -> None:
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self._max_connections = max_connections
        self._counts = {False: 0, True: 0}  # of connections, by whether they are over the limit

    def enter(self) -> "Place":
        is_spare = self._max_connections is not None and self._counts[False] >= self._max_connections
        self._counts[is_spare] += 1
        return Place(is_spare, is_too_much=is_spare and self._counts[True] > NUM_SPARE)

    def leave(self, place: "Place") -> None:
        self._counts[place.is_spare] -= 1


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What a connection occupies until it ends."""

    is_spare: bool
    is_too_much: bool
