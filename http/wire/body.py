"""Request bodies: read up to a size, decompressed, measured before they are parsed; their OpenAPI description; and the
work on an answer, which ends if the client goes away.
"""

import asyncio
import codecs
import functools
import zlib
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from palladio.http.wire.errors import CLIENT_CLOSED_REQUEST, ErrorBody, HttpError
from palladio.http.wire.fields import NoteWarning, WarningList, Warnings
from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.errors import InvalidRequestError, MalformedJsonError, RequestAbortedError

ENCODINGS = ("gzip", "deflate")
SLICE = 1 << 18  # bytes that are decompressed in one go: it takes about a millisecond

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Inflater:
    """Decompresses one body. Nothing is decompressed before it is asked for, so a body of zeros takes no memory.

    Args:
        encoding: one of ENCODINGS. "deflate" is zlib's format, as the standard says, or a bare deflate stream, as some
            clients send.

    Attributes:
        is_waiting: there is input left, or output of it.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._inflate: zlib._Decompress | None = None  # made when the first two bytes say which format it is
        self._input = b""
        self._is_started = False
        self.is_waiting = False

    def feed(self, data: bytes) -> None:
        """More of the compressed body."""
        self._input += data
        self._is_started = self._is_started or bool(data)
        self.is_waiting = bool(self._input)

    def read(self, *, is_last: bool) -> bytes:
        """At most SLICE bytes of the body; while `is_waiting`, there may be more.

        Args:
            is_last: the compressed body is whole.

        Raises:
            HttpError: it is not what its Content-Encoding says.
        """
        try:
            piece = self._read(is_last)
        except zlib.error as error:
            raise _malformed(self._encoding, str(error)) from None
        if is_last and not self.is_waiting and self._is_started and not (self._inflate and self._inflate.eof):
            raise _malformed(self._encoding, "it is cut off")
        return piece

    def _read(self, is_last: bool) -> bytes:
        if self._inflate is not None and self._inflate.eof and self._input:
            if self._encoding != "gzip":
                raise zlib.error("data follows its end")
            self._inflate = None  # gzip files may stand one behind the other
        if self._inflate is None:
            if len(self._input) < 2 and not is_last:
                self.is_waiting = False
                return b""
            self._inflate = zlib.decompressobj(self._window_bits())
        piece = self._inflate.decompress(self._input, SLICE)
        self._input = self._inflate.unconsumed_tail or self._inflate.unused_data
        # with a full slice, the decompressor may hold more, which needs no input
        self.is_waiting = bool(self._input) or (len(piece) == SLICE and not self._inflate.eof)
        return piece

    def _window_bits(self) -> int:
        if self._encoding == "gzip":
            return _GZIP
        head = self._input[:2]
        is_zlib = len(head) == 2 and head[0] & 0x0F == 8 and int.from_bytes(head) % 31 == 0
        return _ZLIB if is_zlib else _RAW


def find_inflater(header: str) -> Inflater | None:
    """What the body needs; None: nothing.

    Args:
        header: Content-Encoding, "" if there is none.

    Raises:
        HttpError: 415: it is another encoding, or several.
    """
    encoding = header.strip().lower()
    if encoding in ("", "identity"):
        return None
    encoding = encoding.removeprefix("x-")  # x-gzip is gzip's old name
    if encoding in ENCODINGS:
        return Inflater(encoding)
    message = (
        f"Content-Encoding {header[:100]!r} is not supported; send the body as it is, or with one of "
        f"{', '.join(ENCODINGS)}"
    )
    headers = {"Accept-Encoding": ", ".join(ENCODINGS), "Connection": "close"}
    raise HttpError(ErrorBody(415, message, "Content-Encoding", code="unsupported_content_encoding", headers=headers))


def _malformed(encoding: str, reason: str) -> HttpError:
    message = f"the request body is not valid {encoding} data, as its Content-Encoding says: {reason}"
    return HttpError(
        ErrorBody(400, message, "Content-Encoding", code="invalid_content_encoding", headers={"Connection": "close"})
    )


LIST_COST, FIELD_COST = 20, 10  # in plain values: of a list or an object, and of one field of an object
NESTED_VALUES = 100_000  # that JSON in a string of the request may hold: arguments of earlier calls, schemas

_SLICE = 1 << 16  # bytes that are looked at in one go: it takes less than 3 ms, whatever they are
_RULE = f"a list or an object counts as {LIST_COST}, each field of an object as {FIELD_COST}"


class JsonMeter:
    """Adds up what a JSON text holds, piece by piece, strings left out. It takes about 1 ns a byte.

    Of a malformed text, what stands before the first fault is counted, which is all that a parser reads.

    Args:
        limit: what it may come to; of several texts, if they are given one after the other, together.

    Attributes:
        cost: plain values, with what lists, objects and fields count as.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cost = 0
        self._is_in_string = False
        self._carried = b""  # a backslash that ends a piece: what it stands before is in the next one

    def feed(self, piece: bytes) -> None:
        """Count a piece. Above some 64 KiB, that takes longer than other clients should wait."""
        text = self._carried + piece
        num_backslashes = len(text) - len(text.rstrip(b"\\"))
        self._carried = b"\\" * (num_backslashes % 2)
        text = text[: len(text) - len(self._carried)]
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = text.split(b'"')
        outside = b"".join(parts[1 if self._is_in_string else 0 :: 2])
        num_quotes = len(parts) - 1
        self._is_in_string ^= num_quotes % 2 == 1
        self.cost += LIST_COST * (outside.count(b"[") + outside.count(b"{")) + FIELD_COST * outside.count(b":")
        self.cost += max(outside.count(b","), num_quotes // 2)  # the others are for quotes that follow each other

    def exceeds(self, text: bytes) -> bool:
        """Whether it is more than the limit with this text, which is looked at no further than that. Other threads run
        between its slices."""
        for begin in range(0, len(text), _SLICE):
            self.feed(text[begin : begin + _SLICE])
            if self.cost > self.limit:
                return True
        return False


def values_message(what: str, limit: int) -> str:
    """What is wrong with a text that holds more."""
    return f"{what} holds more than {limit} values ({_RULE})"


def body_refusal(limit: int) -> HttpError:
    """For a body whose rest need not be read."""
    message = f"{values_message('the request body', limit)}; --max-request-values sets the limit"
    return HttpError(ErrorBody(413, message, code="request_too_large", headers={"Connection": "close"}))


MAX_DEPTH = 128
LARGE_BODY = 1 << 20  # bytes: threads read larger ones

_CONTAINERS = frozenset((dict, list))


def read_json(
    text: str | bytes,
    what: str = "",
    *,
    param: str | None = None,
    code: str | None = None,
    meter: JsonMeter | None = None,
    is_counted: bool = False,
) -> Any:
    """The value that a JSON text of a request stands for.

    Args:
        what: the text, in messages; not needed with `param`, whose path says it.
        param, code: of the errors.
        meter: counts what it holds, with what it has counted before; default: NESTED_VALUES are allowed.
        is_counted: that has been done.

    Raises:
        MalformedJsonError: it is not JSON.
        InvalidRequestError: it holds too much, or is nested deeper than MAX_DEPTH.
    """
    fields = {} if param is None else {"what": param}
    if not is_counted:
        meter = meter or JsonMeter(NESTED_VALUES)
        if meter.exceeds(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            rest = values_message("", meter.limit)
            raise InvalidRequestError.of("{what}{rest}", param=param, code=code, fields=fields, what=what, rest=rest)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if "limit" not in exc.msg:  # orjson has one of its own, which is higher
            message = "{what} is not valid JSON: {why}"
            error = MalformedJsonError.of(message, param=param, code=code, fields=fields, what=what, why=exc)
            raise error from None
    else:
        if not _is_too_deep(text, value):
            return value
    message = "{what} is nested deeper than {most} levels of objects and lists"
    raise InvalidRequestError.of(message, param=param, code=code, fields=fields, what=what, most=MAX_DEPTH)


def _is_too_deep(text: str | bytes, value: Any) -> bool:
    """Level by level: the time goes with the number of values, whatever strings hold."""
    num_openings = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if num_openings <= MAX_DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level if outer)
        level = [inner for inside in values for inner in inside if type(inner) in _CONTAINERS]
    return True


M = TypeVar("M", bound=WireModel)
T = TypeVar("T")


class JsonBody(Generic[M]):
    """Reads the request body as `model`.

    Args:
        note: called for each unknown field that passes, for which the route's answer has a warning; None: none pass.
        is_optional: no body is an empty object.
        of_any_type: the content type may be another.
    """

    def __init__(
        self,
        model: type[M],
        note: NoteWarning | None = None,
        *,
        is_optional: bool = False,
        of_any_type: bool = False,
    ) -> None:
        self._model = model
        self._note = note
        self._is_optional = is_optional
        self._of_any_type = of_any_type

    async def __call__(self, request: Request) -> M:
        """The body, as a dependency of routes whose answers have no warnings."""
        body, _ = await self.read(request)
        return body

    async def read(self, request: Request) -> tuple[M, Warnings]:
        """The body, and the warnings for its answer.

        Raises:
            HttpError, InvalidRequestError: there is none, or it is wrong.
            RequestAbortedError: the client went away.
        """
        data = await read_body(request, is_optional=self._is_optional, of_any_type=self._of_any_type)
        if len(await request.body()) <= LARGE_BODY:
            return parse_noting(self._model, data, self._note)
        return await asyncio.to_thread(parse_noting, self._model, data, self._note)


def parse_noting(model: type[M], data: object, note: NoteWarning | None) -> tuple[M, Warnings]:
    """The body that JSON stands for, and the warnings for its answer.

    Args:
        note: see JsonBody.

    Raises:
        InvalidRequestError: see `WireModel.parse`.
    """
    none = Warnings(are_errors=note is None)
    warnings = WarningList(none)
    body = model.parse(data, warnings)
    warnings.found.note_since(none, note)
    return body, warnings.found


async def read_body(request: Request, *, is_optional: bool = False, of_any_type: bool = False) -> object:
    """The request body's JSON.

    Args:
        is_optional: no body is an empty object.
        of_any_type: its content type may say that it is something else, as curl's does.

    Raises:
        HttpError, InvalidRequestError: it is none.
        RequestAbortedError: the client went away.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if not of_any_type and media_type != "application/json" and not media_type.endswith("+json"):
        message = f"the content type must be application/json, not {media_type[:100]!r}"
        raise HttpError(ErrorBody(415, message, code="unsupported_media_type"))
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise RequestAbortedError("the client went away before its request was read") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)  # some clients' encoders write one
    if len(raw) <= LARGE_BODY:
        return {} if is_optional and not raw else _decode(raw)
    return await asyncio.to_thread(_decode, raw)


def describe_body(model: type[WireModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that takes this body."""
    content = {"application/json": {"schema": _schema_of(model)}}
    return {"requestBody": {"required": True, "content": content}}


@functools.lru_cache
def _schema_of(model: type[WireModel]) -> dict[str, Any]:
    """Without references. Apps share it: FastAPI copies what it makes of a route's `openapi_extra`."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions)
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}


def _decode(raw: bytes) -> object:
    if not raw:
        raise InvalidRequestError("the request body is empty; it must be a JSON object", code="invalid_json")
    return read_json(raw, "the request body", code="invalid_json", is_counted=True)  # BodyLimit has counted them


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and cancels it if the client goes away first. The request's body must have been read.

    Raises:
        HttpError: the client went away.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HttpError(ErrorBody(CLIENT_CLOSED_REQUEST, "the client closed the connection"))
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait((task, gone))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
