"""The lines of a batch's input file."""

import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from typing import Any

from palladio.http.batches.batch_claims import Claim
from palladio.http.batches.batch_records import Fault, Line
from palladio.http.batches.endpoints import find_endpoint
from palladio.http.generation.context import Endpoint
from palladio.http.wire.body import JsonMeter, read_json, values_message
from palladio.runtime.interface.errors import InvalidRequestError

MAX_CUSTOM_ID = 512  # characters

_CHUNK_LINES = 256  # that are read at a time
_Raw = tuple[int, bytes | None]  # a line's number, and its bytes; None: it is too long
_SHORT = 0.005  # seconds; reading a line lets nothing else run


class LineReader:
    """Reads requests for one endpoint. A file of any size passes through little memory.

    Args:
        pieces: begins to read the file.
        max_bytes, max_values: of a line; one with more is a fault of its own.
    """

    def __init__(
        self,
        pieces: Callable[[], AsyncGenerator[bytes, None]],
        endpoint: Endpoint[Any],
        max_bytes: int,
        max_values: int,
    ) -> None:
        self._pieces = pieces
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._max_values = max_values

    async def chunks(self) -> AsyncGenerator[list[Line], None]:
        """Yield all lines but blank ones, a few at a time; threads parse the JSON.

        Raises:
            OSError, HttpError: the file cannot be read.
        """
        splitter = _Splitter(self._max_bytes)
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                lines = self._lines(splitter.feed(piece))
                is_last = False
                while not is_last:
                    chunk = await asyncio.to_thread(_next_chunk, lines)
                    is_last = len(chunk) < _CHUNK_LINES
                    if chunk:
                        yield chunk
        if chunk := await asyncio.to_thread(list, self._lines(splitter.end())):
            yield chunk

    async def claimed(self, claims: AsyncIterable[Claim]) -> AsyncGenerator[tuple[Claim, list[Line]], None]:
        """The lines that are wanted, claim by claim; those of other servers are only counted.

        Args:
            claims: in the order of their lines.

        Raises:
            OSError, HttpError: the file cannot be read.
        """
        splitter = _Splitter(self._max_bytes)
        raws = collections.deque[_Raw]()
        is_over = False
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for claim in claims:
                wanted: list[_Raw] = []
                while not raws or raws[-1][0] <= claim.last:
                    wanted += [raw for raw in raws if claim.wants(raw[0])]
                    raws.clear()
                    if is_over:
                        break
                    piece = await anext(pieces, None)
                    is_over = piece is None
                    raws.extend(
                        await asyncio.to_thread(list, splitter.end() if piece is None else splitter.feed(piece))
                    )
                while raws and raws[0][0] <= claim.last:
                    raw = raws.popleft()
                    wanted += [raw] if claim.wants(raw[0]) else []
                yield claim, await asyncio.to_thread(list, self._lines(wanted))

    def _lines(self, raws: Iterable[_Raw]) -> Iterator[Line]:
        for number, raw in raws:
            if raw is None:
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
                time.sleep(seconds)  # so other threads get the interpreter's lock between long lines
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


class _Splitter:
    """Cuts a file that comes in pieces into numbered lines. Of a line that is too long, it keeps no more than is
    needed to say so."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0  # of lines before this one
        self._begun = bytearray()  # of the line that has not ended yet
        self._is_over = False  # that line is too long

    def feed(self, piece: bytes) -> Iterator[_Raw]:
        """The lines that end in this piece. All of them are taken before the next call."""
        *ended, rest = piece.split(b"\n")
        for line in ended:
            self._grow(line)
            yield self._take()
        self._grow(rest)

    def end(self) -> Iterator[_Raw]:
        """The last line, if the file does not end with a newline."""
        if self._begun or self._is_over:
            yield self._take()

    def _grow(self, data: bytes) -> None:
        # A carriage return before the newline is none of the line's bytes.
        if self._is_over or len(self._begun) + len(data) > self._max_bytes + 1:
            self._is_over = True
            self._begun.clear()
        else:
            self._begun += data

    def _take(self) -> _Raw:
        self._number += 1
        raw = None if self._is_over or len(self._begun.rstrip(b"\r")) > self._max_bytes else bytes(self._begun)
        self._begun.clear()
        self._is_over = False
        return self._number, raw


def _next_chunk(lines: Iterator[Line]) -> list[Line]:
    return list(itertools.islice(lines, _CHUNK_LINES))


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
