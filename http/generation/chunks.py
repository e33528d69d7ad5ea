"""Chunks of chat and text completions, built from prepared bytes: pydantic models cost 30 times more."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import orjson

from palladio.http.generation.event_stream import DONE, END, DoneWriter
from palladio.http.generation.logprobs import LegacyLogprobs, chat_logprobs
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.usage import Usage, finish_fields
from palladio.http.wire.protocol import SamplingFields, StreamOptions
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

_HERE = b"\0"  # in place of a text: JSON has no such byte
_OBFUSCATED_SIZE = 256  # bytes that an obfuscated chunk's choice is filled up to, or to a multiple of


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
        obfuscate: fill chunks up, so that their sizes do not give the lengths of the tokens away.
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
        self._tail = b"]" + (b',"usage":null' if settings.include_usage else b"") + END
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
        """Write a chunk.

        Args:
            extra: fields beside the choices, each after a comma.
        """
        if self._settings.obfuscate:
            extra += b',"obfuscation":"%b"' % (b"x" * (-len(choice) % _OBFUSCATED_SIZE))
        if self._settings.continuous_usage:
            return self._with_usage(choice, extra)
        return self._head + choice + (self._tail if not extra else self._tail.removesuffix(END) + extra + END)

    def _with_usage(self, choice: bytes, extra: bytes) -> bytes:
        return self._head + choice + b'],"usage":' + orjson.dumps(self._usage.as_dict()) + extra + END

    def _timings(self) -> bytes:
        return b',"timings":' + orjson.dumps(self._usage.timings())

    def _flush(self, output: RequestOutput) -> bytes:
        """The event of what is new in a choice; nothing, if there is nothing new."""
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
