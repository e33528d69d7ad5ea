"""Streaming: outputs → server-sent events, built from prepared bytes: pydantic models cost 30 times more."""

import dataclasses
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Self

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palladio.http.generation.generation import OutputStream, Usage, check_abort, finish_fields
from palladio.http.generation.logprobs import LegacyLogprobs, chat_logprobs
from palladio.http.security.connection import PIPE, BodyPipe
from palladio.http.wire.body import until_disconnect
from palladio.http.wire.errors import ErrorBody, HttpError, RequestNames, error_body, internal_error
from palladio.http.wire.protocol import SamplingFields, StreamOptions
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"
_HERE = b"\0"  # in place of a text: JSON has no such byte
_OBFUSCATED_SIZE = 256  # bytes that an obfuscated chunk's choice is filled up to, or to a multiple of
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
        first, end, others = events.partition(_END)
        field, self._field = self._field, b""
        return first + field + end + others


def with_warnings(writer: EventWriter, names: RequestNames) -> EventWriter:
    """Args: names: of the request; most have no warnings."""
    warnings = names.warnings()
    return WarnedEvents(writer, warnings) if warnings else writer


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
        """Args: before_end: what must be done before the last events say that all went well."""
        super().__init__(None, headers=HEADERS, media_type=media_type)
        del self.headers["content-length"]
        self._stream = stream
        self._writer = writer
        self._before_end = before_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stream:
            try:
                await until_disconnect(receive, self._run(send, scope["state"], RequestNames.of(scope)))
            except HttpError:
                return  # the client is gone

    async def _run(self, send_head: Send, state: Mapping[str, Any], names: RequestNames) -> None:
        """Args: state: of the scope. Its `send` goes past the layers that only look at a response's head; its `pipe`,
        where the server has one, past ASGI as well."""
        send: Send = state["send"]
        await send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._send_outputs(send, state.get(PIPE))
            self._stream.end_record()
            await self._before_end()
            last = self._writer.close()
        except (PalladioError, HttpError) as exc:
            self._stream.end_record(exc)
            last = self._writer.fail(error_body(exc, names))
        except Exception as exc:  # the status has gone out: this is the request's border
            self._stream.end_record(exc)
            error_id = uuid.uuid4().hex
            logger.exception("error %s in a stream", error_id)
            last = self._writer.fail(internal_error(error_id))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_outputs(self, send: Send, pipe: BodyPipe | None) -> None:
        write, observe, first = self._writer.write, self._stream.observe, self._stream.first
        if first is not None:
            await send({"type": "http.response.body", "body": write(first), "more_body": True})
        if pipe is not None:
            self._divert(pipe)
        async for output in self._stream.rest:
            observe(output)
            if output.finish is not None:
                check_abort(output)
            if events := write(output):
                await send({"type": "http.response.body", "body": events, "more_body": True})

    def _divert(self, pipe: BodyPipe) -> None:
        """Has outputs written where they come, without a task in between, as long as the client keeps up."""
        write, observe = self._writer.write, self._stream.observe

        def take(output: RequestOutput) -> bool:
            if not pipe.is_open:
                return False
            observe(output)
            if events := write(output):
                pipe.write(events)
            return True

        self._stream.divert(take)


@dataclasses.dataclass(frozen=True)
class StreamSettings:
    """What the client and the server's flags ask of a stream.

    Attributes:
        head: the fields that every chunk has, id first.
        interval: tokens per event.
        include_usage: send a last chunk with the usage.
        continuous_usage: send the usage so far on every chunk.
        logprobs: number of likeliest tokens to report, None for no logprobs.
        token_ids: send the new token ids on each chunk.
        num_choices: of the whole request.
        timings: send the timings on the last chunk.
        obfuscate: fill chunks up, so that their sizes do not tell the lengths of the tokens.
    """

    head: dict[str, Any]
    interval: int
    n: int
    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: int | None = None
    token_ids: bool = False
    num_choices: int = 1
    timings: bool = False
    obfuscate: bool = False

    @classmethod
    def of(cls, body: SamplingFields, head: dict[str, Any], interval: int, stream: OutputStream) -> Self:
        options = body.stream_options or StreamOptions()
        return cls(
            head=head,
            interval=interval,
            n=stream.n,
            include_usage=bool(options.include_usage or (body.usage and body.usage.include)),
            continuous_usage=bool(options.continuous_usage_stats),
            logprobs=stream.logprobs,
            token_ids=bool(body.return_token_ids),
            num_choices=stream.num_choices,
            timings=bool(body.return_timings),
            obfuscate=bool(options.include_obfuscation),
        )


class ChunkWriter(DoneWriter):
    """Common part of chat and completion chunks. Subclasses say what stands in a choice."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._usage = Usage(settings.n)
        self._waiting: dict[int, RequestOutput | None] = {}  # by index: what waits for the choice's next event
        self._sent: set[int] = set()  # choices of which there was an event; the first token is not held back
        self._num_open = settings.num_choices
        self._head = b"data: " + orjson.dumps(settings.head)[:-1] + b',"choices":['
        self._tail = b"]" + (b',"usage":null' if settings.include_usage else b"") + _END
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by index, if quick: what stands round a chunk's text
        self._quick = (
            settings.interval == 1
            and settings.logprobs is None
            and not settings.token_ids
            and not settings.continuous_usage
            and not settings.obfuscate
        )

    def write(self, output: RequestOutput) -> bytes:
        index, finish = output.index, output.finish
        if finish is None and index in self._frames:
            if not output.text:
                return b""
            before, after = self._frames[index]
            return before + orjson.dumps(output.text) + after
        self._usage.add(output)
        opening = b"" if index in self._waiting else self._opening(output)
        waiting = self._waiting.setdefault(index)
        if self._quick and finish is None:
            before, _, after = self._text_choice(index, _HERE, b"null", b"").partition(_HERE)
            self._frames[index] = before, after = self._head + before, after + self._tail
            return opening + (before + orjson.dumps(output.text) + after if output.text else b"")
        if waiting is not None:
            waiting.extend(output)
            output = waiting
        held = finish is None and index in self._sent and len(output.token_ids) < self._settings.interval
        events = b"" if held else self._flush(output)
        if finish is None:
            self._waiting[index] = None if events else output
            return opening + events
        self._num_open -= 1
        ends = self._settings.timings and self._num_open == 0 and not self._settings.include_usage
        return opening + events + self._chunk(self._final_choice(index, finish), self._timings() if ends else b"")

    def close(self) -> bytes:
        if not self._settings.include_usage:
            return DONE
        return self._with_usage(b"", self._timings() if self._settings.timings else b"") + DONE

    def _chunk(self, choice: bytes, extra: bytes = b"") -> bytes:
        """Args: extra: fields beside the choices, each after a comma."""
        if self._settings.obfuscate:
            extra += b',"obfuscation":"%b"' % (b"x" * (-len(choice) % _OBFUSCATED_SIZE))
        if self._settings.continuous_usage:
            return self._with_usage(choice, extra)
        return self._head + choice + (self._tail if not extra else self._tail.removesuffix(_END) + extra + _END)

    def _with_usage(self, choice: bytes, extra: bytes) -> bytes:
        return self._head + choice + b'],"usage":' + orjson.dumps(self._usage.as_dict()) + extra + _END

    def _timings(self) -> bytes:
        return b',"timings":' + orjson.dumps(self._usage.timings())

    def _flush(self, output: RequestOutput) -> bytes:
        """The event of what is new in a choice; nothing, if there is nothing to tell yet."""
        if not output.text and not self._has_tokens(output):
            return b""
        self._sent.add(output.index)
        return self._chunk(self._text_choice(output.index, orjson.dumps(output.text), *self._of_tokens(output)))

    def _has_tokens(self, output: RequestOutput) -> bool:
        """Whether there is something to send of the tokens, though they may make no text."""
        has_logprobs = self._settings.logprobs is not None and bool(output.logprobs)
        return has_logprobs or (self._settings.token_ids and bool(output.token_ids))

    def _of_tokens(self, output: RequestOutput) -> tuple[bytes, bytes]:
        """The `logprobs` of a chunk, and its other fields, each after a comma."""
        logprobs = b"null"
        if self._settings.logprobs is not None:
            logprobs = orjson.dumps(self._logprobs(output.index, output.logprobs or []))
        ids = b',"token_ids":' + orjson.dumps(output.token_ids) if self._settings.token_ids else b""
        return logprobs, ids

    def _opening(self, output: RequestOutput) -> bytes:
        raise NotImplementedError

    def _logprobs(self, index: int, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        raise NotImplementedError

    def _text_choice(self, index: int, text: bytes, logprobs: bytes, extra: bytes) -> bytes:
        raise NotImplementedError

    def _final_choice(self, index: int, finish: FinishReason) -> bytes:
        raise NotImplementedError


UNFINISHED = b',"finish_reason":null,"matched_stop":null'


class ChatChunks(ChunkWriter):
    """`chat.completion.chunk`: a role first, then content, then an empty delta with the finish reason."""

    def __init__(self, settings: StreamSettings, tokenizer: Tokenizer) -> None:
        super().__init__(settings)
        self._tokenizer = tokenizer

    def _opening(self, output: RequestOutput) -> bytes:
        delta = b'{"role":"assistant","content":"","reasoning_content":null}'
        return self._chunk(b'{"index":%d,"delta":%b,"logprobs":null%b}' % (output.index, delta, UNFINISHED))

    def _logprobs(self, index: int, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs(self._tokenizer, logprobs)

    def _text_choice(self, index: int, text: bytes, logprobs: bytes, extra: bytes) -> bytes:
        delta = b'{"content":%b,"reasoning_content":null}' % text
        return b'{"index":%d,"delta":%b,"logprobs":%b%b%b}' % (index, delta, logprobs, UNFINISHED, extra)

    def _final_choice(self, index: int, finish: FinishReason) -> bytes:
        delta = {"reasoning_content": None}
        return orjson.dumps({"index": index, "delta": delta, "logprobs": None} | finish_fields(finish))


class CompletionChunks(ChunkWriter):
    """`text_completion` chunks.

    Args:
        new_legacy: makes the log-probabilities' arrays of a prompt, by its position.
        echoes: the text of each prompt, with echo.
    """

    def __init__(
        self, settings: StreamSettings, new_legacy: Callable[[int], LegacyLogprobs], echoes: list[str] | None
    ) -> None:
        super().__init__(settings)
        self._new_legacy = new_legacy
        self._echoes = echoes
        self._legacy: dict[int, LegacyLogprobs] = {}

    def _opening(self, output: RequestOutput) -> bytes:
        if self._echoes is None:
            return b""
        text = orjson.dumps(self._echoes[output.index // self._settings.n])
        logprobs = b"null"
        if self._settings.logprobs is not None:
            logprobs = orjson.dumps(self._arrays(output.index).of_prompt(output.prompt_logprobs or []))
        return self._chunk(self._text_choice(output.index, text, logprobs, b""))

    def _logprobs(self, index: int, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return self._arrays(index).of_output(logprobs)

    def _arrays(self, index: int) -> LegacyLogprobs:
        legacy = self._legacy.get(index)
        if legacy is None:
            legacy = self._legacy[index] = self._new_legacy(index // self._settings.n)
        return legacy

    def _text_choice(self, index: int, text: bytes, logprobs: bytes, extra: bytes) -> bytes:
        return b'{"index":%d,"text":%b,"logprobs":%b%b%b}' % (index, text, logprobs, UNFINISHED, extra)

    def _final_choice(self, index: int, finish: FinishReason) -> bytes:
        return orjson.dumps({"index": index, "text": "", "logprobs": None} | finish_fields(finish))
