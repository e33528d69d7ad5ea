"""BodyPipe: the fast path of an answer's body, past ASGI."""

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

PIPE = "pipe"  # in the state of a request's scope: its BodyPipe


class BodyPipe:
    """Writes parts of one answer's body at once, as uvicorn's `send` would, once its head has gone out.

    Args:
        cycle: of the request.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def is_open(self) -> bool:
        """Whether it may be written to now: the answer is under way in chunks, and the client keeps up."""
        cycle = self._cycle
        return (
            not self._flow.write_paused
            and not cycle.disconnected
            and cycle.response_started
            and not cycle.response_complete
            and cycle.chunked_encoding is True
        )

    def write(self, data: bytes) -> None:
        """Write a piece of the body.

        Args:
            data: not empty.
        """
        self._write(b"%x\r\n%b\r\n" % (len(data), data))
