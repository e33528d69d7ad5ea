"""The bodies of the routes that pause generation, exchange the weights, release memory, end requests and configure the
server's processes: SGLang's and vLLM's fields."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import RequestId, WireModel
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.model_messages import UpdateOptions
from palladio.runtime.telemetry.logs import LogFormat

Tags = Annotated[list[str], Field(fail_fast=True)]


class PauseRequest(WireModel):
    mode: str | None = None


class ContinueRequest(WireModel):
    torch_empty_cache: bool | None = None


class MemoryRequest(WireModel):
    tags: Tags | None = None


class UpdateFields(WireModel):
    load_format: str | None = None
    abort_all_requests: bool | None = None
    weight_version: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    is_async: bool | None = None
    torch_empty_cache: bool | None = None
    keep_pause: bool | None = None
    recapture_cuda_graph: bool | None = None
    token_step: int | None = None
    flush_cache: bool | None = None

    def options(self) -> UpdateOptions:
        """
        Raises:
            InvalidRequestError: a field asks for what is not there.
        """
        return UpdateOptions.of(self.model_dump(include=set(UpdateFields.model_fields)))


class UpdateFromDiskRequest(UpdateFields):
    model_path: Annotated[str, Field(min_length=1)]
    manifest: dict[str, Any] | None = None

    def options(self) -> UpdateOptions:
        """As of UpdateFields."""
        if self.manifest is not None:
            UpdateOptions.of({"manifest": self.manifest})
        return super().options()


class UpdateFromTensorRequest(UpdateFields):
    safetensors: Annotated[str, Field(min_length=1)] | None = None
    serialized_named_tensors: Any = None
    disable_draft_model: bool | None = None

    def content(self) -> str:
        """The base64 text of a safetensors file.

        Raises:
            InvalidRequestError: there is none; or pickled tensors.
        """
        if self.serialized_named_tensors is not None:
            raise InvalidRequestError(
                "serialized_named_tensors are pickled, and reading them could run any code: send the tensors as a "
                "safetensors file, in base64, in the field safetensors",
                param="serialized_named_tensors",
            )
        if self.safetensors is None:
            raise InvalidRequestError(
                "safetensors is required: a safetensors file with all of the model's tensors, in base64",
                param="safetensors",
            )
        return self.safetensors


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
