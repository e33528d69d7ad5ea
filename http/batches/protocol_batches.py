"""The body that makes a batch."""

from typing import Annotated, Literal

from palladio.http.wire.protocol import AtMost, WireModel

MAX_PAIRS = 16  # of metadata


class OutputExpiresAfter(WireModel):
    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(WireModel):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[str, str] | None, AtMost(MAX_PAIRS, "pairs")] = None
    output_expires_after: OutputExpiresAfter | None = None
