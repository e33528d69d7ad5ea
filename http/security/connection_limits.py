"""ConnectionLimits: how many connections a server has, and how many and how slow ones it takes."""

import dataclasses

NUM_SPARE = 64  # connections over the limit that are kept to be answered, with a probe's answer or a 503; more are cut
COUNTS_BYTES = 16  # of one front process: its connections that are served, and those over the limit


class ConnectionCounts:
    """How many connections there are, in all front processes of a server.

    Args:
        memory: COUNTS_BYTES for each of them, which they share; each writes its own part. None: there is only one.
        slot: of this one.
    """

    def __init__(self, memory: memoryview | None = None, slot: int = 0) -> None:
        self._all = memoryview(bytearray(COUNTS_BYTES) if memory is None else memory).cast("q")
        self._slot = slot

    def add(self, count: int, *, is_spare: bool) -> None:
        self._all[2 * self._slot + is_spare] += count

    def total(self, *, is_spare: bool) -> int:
        return sum(self._all[place] for place in range(is_spare, len(self._all), 2))


class ConnectionLimits:
    """Of one server.

    Args:
        read_timeout: seconds for a request's head.
        write_timeout: seconds in which some bytes of an answer must go out.
        max_connections: that are served; None: no limit.
        counts: of connections; default: of this process alone.
    """

    def __init__(
        self,
        read_timeout: float,
        write_timeout: float,
        max_connections: int | None = None,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self._max_connections = max_connections
        self._counts = counts or ConnectionCounts()

    def enter(self) -> "Place":
        most, counts = self._max_connections, self._counts
        is_spare = most is not None and counts.total(is_spare=False) >= most
        counts.add(1, is_spare=is_spare)
        return Place(is_spare, is_too_much=is_spare and counts.total(is_spare=True) > NUM_SPARE)

    def leave(self, place: "Place") -> None:
        self._counts.add(-1, is_spare=place.is_spare)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What a connection occupies until it ends."""

    is_spare: bool
    is_too_much: bool
