"""Reading an upload: a multipart form whose file is stored as it arrives."""

import asyncio
import dataclasses
import re
from collections.abc import AsyncGenerator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from palladio.http.files.file_store import INPUT_PREFIX, PURPOSES, RESULT_PURPOSE, Contents, FileStore
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import InvalidRequestError, RequestAbortedError

MIN_EXPIRY, MAX_EXPIRY = 3600, 30 * 24 * 3600  # seconds; OpenAI's
FORM_BYTES = 64 * 1024  # of a form without the file: other fields and separators
MAX_NAME_LENGTH = 255
MAX_PART_HEADERS, MAX_PART_HEADER = 8, 4096  # of a part of a form: how many, and bytes of each

_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_MAX_FIELD_BYTES = 1024
_FEED = 1 << 20  # bytes that a thread parses and stores at a time
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """Attributes:
    contents: stored, and of no file yet.
    expires_after: seconds; None: it stays.
    """

    contents: Contents
    filename: str
    purpose: str
    expires_after: int | None


async def read_upload(request: Request, store: FileStore, max_bytes: int) -> Upload:
    """Nothing is stored of a form that is wrong anywhere.

    Raises:
        HttpError: it is no form, or the file is over `max_bytes`, or the file cannot be stored.
        InvalidRequestError: the form is malformed, or a field of it is wrong.
        RequestAbortedError: the client went away.
        OSError: such as a full disk.
    """
    form = _Form(_boundary(request), max_bytes)
    contents = await store.put(INPUT_PREFIX, _contents(request, form))
    return Upload(contents, form.filename, form.purpose(), form.expires_after())


async def _contents(request: Request, form: "_Form") -> AsyncGenerator[bytes, None]:
    """The file of a form, as it arrives. It ends with the form, which is right then."""
    buffer = bytearray()
    try:
        async for chunk in request.stream():
            buffer += chunk
            if len(buffer) >= _FEED:
                if piece := await asyncio.to_thread(form.feed, bytes(buffer)):
                    yield piece
                buffer.clear()
    except ClientDisconnect:
        raise RequestAbortedError("the client went away before its file was read") from None
    if piece := await asyncio.to_thread(form.feed, bytes(buffer)):
        yield piece
    form.check()


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        message = f"the content type must be multipart/form-data, not {kind.decode('latin-1')[:100]!r}"
        raise HttpError(ErrorBody(415, message, code="unsupported_media_type"))
    if not options.get(b"boundary"):
        raise InvalidRequestError("the content type multipart/form-data has no boundary", code="invalid_form")
    return options[b"boundary"]


class _Form:
    """The form so far."""

    def __init__(self, boundary: bytes, max_bytes: int) -> None:
        self.filename = ""
        self._max_bytes = max_bytes
        self._size = 0  # of the file, so far
        self._has_file = False
        self._pieces: list[bytes] = []  # of the file, that `feed` is to return
        self._fields: dict[str, bytearray] = {}
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._name = ""  # of the part that is being read
        self._is_complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._begin_part,
                    "on_part_data": self._add,
                    "on_end": self._complete,
                },
                max_header_count=MAX_PART_HEADERS,
                max_header_size=MAX_PART_HEADER,
            )
        except FormParserError as error:
            raise _malformed(error) from None

    def feed(self, data: bytes) -> bytes:
        """Returns what `data` has of the file."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(error) from None
        piece = b"".join(self._pieces)
        self._pieces.clear()
        return piece

    def check(self) -> None:
        """All of it has been fed.

        Raises:
            InvalidRequestError: something is missing or wrong.
        """
        if not self._is_complete:
            raise InvalidRequestError("the form ends in the middle: its last boundary is missing", code="invalid_form")
        if not self._has_file:
            raise InvalidRequestError("the form has no file: send it as the field file", param="file")
        self.purpose()
        self.expires_after()

    def _complete(self) -> None:
        self._is_complete = True

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _begin_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name in self._fields or (name == "file" and self._has_file):
            raise InvalidRequestError(f"{name}: the form has this field twice", param=name)
        if name == "file":
            self.filename = _plain_name(options.get(b"filename", b""))
            self._has_file = True
        elif name in _FIELDS:
            self._fields[name] = bytearray()
        else:
            shown = name[:200]
            raise InvalidRequestError(f"unknown field: {shown}", param=shown, code="unknown_parameter")
        self._name = name

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self._size += end - start
            if self._size > self._max_bytes:
                raise HttpError(file_too_large(self._max_bytes))
            self._pieces.append(data[start:end])
            return
        value = self._fields[self._name]
        value += data[start:end]
        if len(value) > _MAX_FIELD_BYTES:
            raise InvalidRequestError(f"{self._name} is over {_MAX_FIELD_BYTES} bytes", param=self._name)

    def _value(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    def purpose(self) -> str:
        purpose = self._value("purpose")
        if purpose in PURPOSES:
            return purpose
        message = f"purpose must be one of {', '.join(PURPOSES)}"
        if purpose == RESULT_PURPOSE:
            message += f"; {RESULT_PURPOSE} is for the results that the server makes"
        raise InvalidRequestError(message if purpose else f"{message}; the form has none", param="purpose")

    def expires_after(self) -> int | None:
        anchor, seconds = self._value("expires_after[anchor]"), self._value("expires_after[seconds]")
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise InvalidRequestError("expires_after[anchor] must be created_at", param="expires_after[anchor]")
        number = int(seconds) if seconds is not None and re.fullmatch(r"\d{1,9}", seconds, re.ASCII) else None
        return check_expiry(number, "expires_after[seconds]")


def check_expiry(seconds: int | None, param: str) -> int:
    """
    Raises:
        InvalidRequestError: it is no number of seconds, or out of range.
    """
    if seconds is None or not MIN_EXPIRY <= seconds <= MAX_EXPIRY:
        raise InvalidRequestError(f"{param} must be an integer in {MIN_EXPIRY} … {MAX_EXPIRY} (30 days)", param=param)
    return seconds


def file_too_large(max_bytes: int) -> ErrorBody:
    message = f"the file is over {max_bytes} bytes; --max-file-bytes sets the limit"
    return ErrorBody(413, message, "file", code="request_too_large", headers={"Connection": "close"})


def _plain_name(given: bytes) -> str:
    """The last part of a path, without control characters: no more than something to show."""
    name = re.split(r"[/\\]", _CONTROL.sub("", given.decode("utf-8", "replace")))[-1].strip()
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidRequestError(f"file: its name is over {MAX_NAME_LENGTH} characters", param="file")
    return name if name.strip(".") else "upload"


def _malformed(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError(f"the form is malformed: {error}", code="invalid_form")
