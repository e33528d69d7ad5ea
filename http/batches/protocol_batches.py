"""The body that makes a batch."""

from typing import Literal

from palladio.http.protocol import WireModel


class OutputExpiresAfter(WireModel):
    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(WireModel):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiresAfter | None = None
