"""The results of a batch's lines: each line has one, which is a line of the output file or of the error file."""

import dataclasses
import uuid
from typing import Any

import orjson

from palladio.http.batches.batch import Usage
from palladio.http.wire.errors import ErrorBody


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a line is not run: what is wrong with it (the message names the line), or what came before it."""

    code: str
    message: str
    param: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Attributes:
    number: from 1, blank lines counted.
    custom_id: None: it has none that can be used.
    body: of the request; None with a fault.
    is_object: it is a JSON object, whatever else is wrong.
    """

    number: int
    custom_id: str | None = None
    body: dict[str, Any] | None = None
    fault: Fault | None = None
    is_object: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class LineResult:
    """Attributes:
    record: its line in one of the files of results, without the line's end.
    answer: what a route answered with, as JSON.
    was_left: the batch ended before the line did, by a cancel or its window: it has not failed.
    """

    line: int
    succeeded: bool
    record: bytes
    answer: bytes | None = None
    was_left: bool = False

    def usage(self) -> Usage:
        return Usage() if self.answer is None else Usage.of(orjson.loads(self.answer))


def answered(line: Line, status: int, request_id: str, answer: bytes) -> LineResult:
    """Make the result of a line that a route has answered.

    Args:
        answer: the body, JSON.
    """
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(answer)}
    succeeded = status == 200
    return LineResult(line.number, succeeded, _record(line, response, None), answer if succeeded else None)


def refused(line: Line, body: ErrorBody, request_id: str) -> LineResult:
    """Make the result of a line that is refused, with the body that the route would have answered."""
    return answered(line, body.status, request_id, orjson.dumps(body.payload()))


def left(line: Line, fault: Fault) -> LineResult:
    """Make the result of an unanswered line of a cancelled or expired batch."""
    return LineResult(
        line.number, False, _record(line, None, {"code": fault.code, "message": fault.message}), was_left=True
    )


def not_run(line: Line, fault: Fault) -> LineResult:
    """Make the result of a line that is no valid request; no route was asked."""
    return LineResult(line.number, False, _record(line, None, {"code": fault.code, "message": fault.message}))


def _record(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    record_id = f"batch_req_{uuid.uuid4().hex}"
    return orjson.dumps({"id": record_id, "custom_id": line.custom_id, "response": response, "error": error})
