"""Request bodies that come compressed (Content-Encoding), decompressed a slice at a time."""

import zlib

from palladio.http.wire.errors import ErrorBody, HttpError

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
