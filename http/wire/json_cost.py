"""What JSON costs to read, counted before it is read: neither orjson nor pydantic lets anything else run meanwhile."""

from palladio.http.wire.errors import ErrorBody, HttpError

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
        """Args: piece: however long; above some 64 KiB, it takes longer than other clients should wait."""
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
