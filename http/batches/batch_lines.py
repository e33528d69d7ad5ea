"""The lines of a batch's input file."""

import asyncio
import contextlib
import dataclasses
import hashlib
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from palladio.http.batches.batch_records import Fault, Line
from palladio.http.batches.endpoints import find_endpoint
from palladio.http.generation.generation import Endpoint
from palladio.http.wire.body import JsonMeter, read_json, values_message
from palladio.runtime.interface.errors import InvalidRequestError

MAX_CUSTOM_ID = 512  # characters

_CHUNK_LINES, _CHUNK_BYTES = 256, 1 << 20  # that are read at a time
_SKIP = 1 << 20
_SHORT = 0.005  # seconds; reading a line lets nothing else run


class LineReader:
    """Reads requests for one endpoint. A file of any size passes through little memory.

    Args:
        max_bytes, max_values: of a line; one with more is a fault of its own.
    """

    def __init__(self, path: Path, endpoint: Endpoint[Any], max_bytes: int, max_values: int) -> None:
        self._path = path
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._max_values = max_values

    async def chunks(self) -> AsyncGenerator[list[Line], None]:
        """All lines but blank ones, a few at a time; file and JSON are read beside the event loop.

        Raises:
            OSError: the file cannot be read.
        """
        with contextlib.closing(await asyncio.to_thread(self._path.open, "rb")) as file:
            lines = self._lines(file)
            while chunk := await asyncio.to_thread(self._next_chunk, file, lines):
                yield chunk

    def _next_chunk(self, file: BinaryIO, lines: Iterator[Line]) -> list[Line]:
        chunk: list[Line] = []
        begin = file.tell()
        for line in lines:
            chunk.append(line)
            if len(chunk) == _CHUNK_LINES or file.tell() - begin >= _CHUNK_BYTES:
                break
        return chunk

    def _lines(self, file: BinaryIO) -> Iterator[Line]:
        number = 0
        while raw := file.readline(self._max_bytes + 2):
            number += 1
            if len(raw.rstrip(b"\r\n")) > self._max_bytes:
                while not raw.endswith(b"\n") and (raw := file.readline(_SKIP)):
                    pass
                message = f"line {number} is over {self._max_bytes} bytes (--max-request-bytes)"
                yield Line(number, fault=Fault("line_too_large", message), is_object=False)
            elif raw.strip():
                yield self._read(number, raw)

    def _read(self, number: int, raw: bytes) -> Line:
        begun = time.perf_counter()
        text = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if JsonMeter(self._max_values).exceeds(text):
            message = f"{values_message(f'line {number}', self._max_values)} (--max-request-values)"
            return Line(number, fault=Fault("line_too_large", message), is_object=False)
        try:
            value = read_json(text, f"line {number}", is_counted=True)
        except InvalidRequestError as error:
            return Line(number, fault=Fault("invalid_json_line", str(error)), is_object=False)
        finally:
            seconds = time.perf_counter() - begun
            if seconds > _SHORT:
                time.sleep(seconds)  # line after line, others would wait for one at every turn
        if not isinstance(value, dict):
            fault = Fault("invalid_json_line", f"line {number} is not a JSON object")
            return Line(number, fault=fault, is_object=False)
        given = value.get("custom_id")
        custom_id = given if isinstance(given, str) and 0 < len(given) <= MAX_CUSTOM_ID else None
        found = self._fault(value, custom_id)
        if found is None:
            return Line(number, custom_id, value["body"])
        return Line(number, custom_id, fault=dataclasses.replace(found, message=f"line {number}: {found.message}"))

    def _fault(self, value: dict[str, Any], custom_id: str | None) -> Fault | None:
        for name in ("custom_id", "method", "url", "body"):
            if value.get(name) is None:
                return Fault("missing_required_parameter", f"{name} is missing", name)
        if custom_id is None:
            return Fault(
                "invalid_custom_id", f"custom_id must be a string of 1 … {MAX_CUSTOM_ID} characters", "custom_id"
            )
        unknown = next((name for name in value if name not in ("custom_id", "method", "url", "body")), None)
        if unknown is not None:
            return Fault("unknown_parameter", f"unknown field: {unknown[:200]}", unknown[:200])
        if value["method"] != "POST":
            return Fault("invalid_method", "method must be POST", "method")
        url = value["url"]
        if not isinstance(url, str) or find_endpoint(url) is not self._endpoint:
            message = f"url must be {self._endpoint.path}, the batch's endpoint, not {str(url)[:200]!r}"
            return Fault("mismatched_url", message, "url")
        if not isinstance(value["body"], dict):
            return Fault("invalid_body", "body must be a JSON object", "body")
        if value["body"].get("stream"):
            return Fault(
                "unsupported_stream", "body.stream: a batch's answers are files; leave stream out", "body.stream"
            )
        return None


class DuplicateFinder:
    """Finds custom_ids that a line before has. It keeps 16 bytes of each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}  # → the line

    def check(self, line: Line) -> Line:
        """The line, with a fault if it has none yet and its custom_id is another's."""
        if line.custom_id is None:
            return line
        key = hashlib.blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        first = self._seen.setdefault(key, line.number)
        if first == line.number or line.fault is not None:
            return line
        message = f"line {line.number}: custom_id is already used by line {first}"
        return dataclasses.replace(line, body=None, fault=Fault("duplicate_custom_id", message, "custom_id"))
