"""Batch: one batch, as the database has it and as clients see it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

import orjson

from palladio.http.storage.records.database import Row

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
LIVE: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, of one answer or of all together."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, answer: object) -> Self:
        """Read the usage of a route's answer; the routes name their counts differently.

        Args:
            answer: the decoded body.
        """
        usage = _object(_object(answer).get("usage"))
        inputs = usage.get("prompt_tokens", usage.get("input_tokens"))
        outputs = usage.get("completion_tokens", usage.get("output_tokens"))
        of_inputs = _object(usage.get("prompt_tokens_details", usage.get("input_tokens_details")))
        of_outputs = _object(usage.get("completion_tokens_details", usage.get("output_tokens_details")))
        return cls(
            input_tokens=_count(inputs),
            cached_tokens=_count(of_inputs.get("cached_tokens")),
            output_tokens=_count(outputs),
            reasoning_tokens=_count(of_outputs.get("reasoning_tokens")),
            total_tokens=_count(usage.get("total_tokens")),
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.total_tokens,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The columns of its table.

    Attributes:
        created_at, expires_at, …_at: seconds since the epoch. expired_at while it is finalizing: it will be expired.
        metadata, errors: JSON.
        output_expires_after: seconds that the files of its results stay; None: until they are deleted.
        total, completed, failed: counts of lines. The error file has the failed lines and the unanswered lines of a
            cancelled or expired batch.
        owner: owner of the API key that created the batch; owns its files too; empty: no owner.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    model: str | None = None
    metadata: str | None = None
    errors: str | None = None
    output_expires_after: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0
    owner: str = ""

    @classmethod
    def of(cls, row: Row) -> Self:
        return cls(**dict(row))

    @property
    def usage(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
            total_tokens=self.total_tokens,
        )

    @property
    def num_left(self) -> int:
        """Lines that a cancel or the end of the window has left without an answer."""
        return self.total - self.completed - self.failed if self.status in ("cancelled", "expired") else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the batch as clients see it. OpenAI's counts have no field for unanswered lines, so Palladio adds
        fields."""
        values = dataclasses.asdict(self)
        shown = {name: values[name] for name in ("id", "endpoint", "model", "input_file_id", "completion_window")}
        files = {"output_file_id": self.output_file_id, "error_file_id": self.error_file_id}
        return {
            "object": "batch",
            **shown,
            "status": self.status,
            **files,
            "errors": None if self.errors is None else {"object": "list", "data": orjson.loads(self.errors)},
            **{name: value for name, value in values.items() if name.endswith("_at")},
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
                **({self.status: self.num_left} if self.num_left else {}),
            },
            "usage": self.usage.as_dict(),
            "metadata": None if self.metadata is None else orjson.loads(self.metadata),
        }


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
