"""Bodies of routes that end requests and configure the server's processes: vLLM's and SGLang's fields."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import RequestId, WireModel
from palladio.runtime.telemetry.logs import LogFormat


class AbortRequestsBody(WireModel):
    """POST /abort_requests, as vLLM has it."""

    request_ids: Annotated[list[RequestId], Field(fail_fast=True)] | None = None


class ConfigureLoggingBody(WireModel):
    """POST /configure_logging, as SGLang has it."""

    log_requests: bool | None = None
    log_requests_level: Literal[0, 1, 2, 3] | None = None
    log_requests_format: LogFormat | None = None
    log_level: str | None = None
    dump_requests_folder: Any = None
    dump_requests_threshold: Any = None
    dump_requests_exclude_meta_keys: Any = None
    crash_dump_folder: Any = None
