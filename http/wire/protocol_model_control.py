"""The bodies of the routes that pause generation, exchange the weights and release memory: SGLang's fields."""

from typing import Annotated, Any

from pydantic import Field

from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.model_messages import UpdateOptions

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
