"""ProgressChunks: chunks of completions that say how far the prompt is computed, in llama.cpp's form."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from palladio.http.generation.chunks import StreamSettings
from palladio.http.generation.event_stream import EventWriter
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.outputs.request_output import RequestOutput

_OPEN: Final = {"logprobs": None, "finish_reason": None}
CHAT_CHOICE: Final[Mapping[str, Any]] = {"delta": {"role": "assistant", "content": None}} | _OPEN
TEXT_CHOICE: Final[Mapping[str, Any]] = {"text": ""} | _OPEN


class ProgressChunks:
    """An EventWriter: outputs of the prefill become chunks with `prompt_progress`; another writer gets the others.

    Args:
        writer: of the other outputs.
        settings: of the stream.
        choice: what a chunk without text has as its choice, besides the index.
    """

    def __init__(self, writer: EventWriter, settings: StreamSettings, choice: Mapping[str, Any]) -> None:
        self._writer = writer
        self._head = settings.head
        self._usage: dict[str, Any] = {"usage": None} if settings.include_usage else {}
        self._choice = choice

    def write(self, output: RequestOutput) -> bytes:
        progress = output.progress
        if progress is None:
            return self._writer.write(output)
        choices = [{"index": output.index, **self._choice}]
        chunk = {**self._head, "choices": choices, **self._usage, "prompt_progress": progress.as_dict()}
        event = b"data: " + orjson.dumps(chunk) + b"\n\n"
        is_alone = not output.token_ids and output.finish is None  # else it was joined with what came next
        return event if is_alone else event + self._writer.write(output)

    def close(self) -> bytes:
        return self._writer.close()

    def fail(self, error: ErrorBody) -> bytes:
        return self._writer.fail(error)
