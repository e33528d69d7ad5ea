"""EventStream: a response of server-sent events, and what writers of events are like."""

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palladio.http.generation.output_stream import OutputStream
from palladio.http.security.body_pipe import PIPE, BodyPipe
from palladio.http.wire.body import until_disconnect
from palladio.http.wire.errors import ErrorBody, HttpError, error_body, internal_error
from palladio.http.wire.fields import Warnings
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.interface.outputs.request_output import RequestOutput

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
END = b"}\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventWriter(Protocol):
    """Turns a request's outputs into events."""

    def write(self, output: RequestOutput) -> bytes:
        """The events that this output makes; empty for none."""
        ...

    def close(self) -> bytes:
        """The events after the last output."""
        ...

    def fail(self, error: ErrorBody) -> bytes:
        """The events in their place, when something went wrong after the status had gone out."""
        ...


class DoneWriter:
    """An EventWriter's end, as OpenAI's older routes have it."""

    def close(self) -> bytes:
        return DONE

    def fail(self, error: ErrorBody) -> bytes:
        return error.event() + DONE


class WarnedEvents:
    """An EventWriter with warnings: the first of another one's events has them, as one more field.

    Args:
        writer: of events that are JSON objects, each a line of data.
        warnings: the field.
    """

    def __init__(self, writer: EventWriter, warnings: Mapping[str, Any]) -> None:
        self._writer = writer
        self._field = b"," + orjson.dumps(warnings)[1:-1]
        self.close = writer.close
        self.fail = writer.fail

    def write(self, output: RequestOutput) -> bytes:
        events = self._writer.write(output)
        if not events or not self._field:
            return events
        first, end, others = events.partition(END)
        field, self._field = self._field, b""
        return first + field + end + others


def with_warnings(writer: EventWriter, warnings: Warnings) -> EventWriter:
    """Adds the request's warnings, if there are any."""
    return WarnedEvents(writer, warnings.fields()) if warnings.entries else writer


async def _nothing() -> None:
    pass


class EventStream(Response):
    """A response of server-sent events from a started stream; a client that goes away aborts the request."""

    def __init__(
        self,
        stream: OutputStream,
        writer: EventWriter,
        before_end: Callable[[], Awaitable[None]] = _nothing,
        media_type: str = "text/event-stream",
    ) -> None:
        """Stream the events of an output.

        Args:
            before_end: what must be done before the last events report success.
        """
        super().__init__(None, headers=HEADERS, media_type=media_type)
        del self.headers["content-length"]
        self._stream = stream
        self._writer = writer
        self._before_end = before_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stream:
            try:
                await until_disconnect(receive, self._run(send, scope["state"]))
            except HttpError:
                return  # the client is gone

    async def _run(self, send_head: Send, state: Mapping[str, Any]) -> None:
        """Send the events.

        Args:
            state: the scope's state. Its `send` skips the layers that only look at a response's head; its `pipe`,
                where the server has one, skips ASGI as well.
        """
        send: Send = state["send"]
        await send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._send_outputs(send, state.get(PIPE))
            self._stream.end_record()
            await self._before_end()
            last = self._writer.close()
        except (PalladioError, HttpError) as exc:
            self._stream.end_record(exc)
            last = self._writer.fail(error_body(exc, self._stream.names))
        except Exception as exc:  # the status has gone out: this is the request's border
            self._stream.end_record(exc)
            error_id = uuid.uuid4().hex
            logger.exception("error %s in a stream", error_id)
            last = self._writer.fail(internal_error(error_id))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_outputs(self, send: Send, pipe: BodyPipe | None) -> None:
        write, is_first = self._writer.write, True
        async for output in self._stream:
            if events := write(output):
                await send({"type": "http.response.body", "body": events, "more_body": True})
            if is_first and pipe is not None:
                self._stream.attach(write, pipe)
            is_first = False
