"""POST /v1/embeddings and SGLang's POST /encode: the requests."""

from typing import Annotated, Literal

from pydantic import Field

from palladio.http.wire.protocol import RequestId, WireModel
from palladio.http.wire.protocol_completions import PromptField
from palladio.http.wire.protocol_generate import TokenIds


class EmbeddingRequest(WireModel):
    input: PromptField
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    rid: RequestId | None = None
    request_id: RequestId | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    timeout: float | None = None
    routed_dp_rank: int | None = None
    no_logs: bool | None = None
    log_metrics: bool | None = None


class EncodeRequest(WireModel):
    """A list in `text` or `input_ids` makes a batch; the per-prompt fields then take a list or one value for all."""

    text: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    input_ids: TokenIds | None = None
    dimensions: int | None = None
    rid: RequestId | Annotated[list[RequestId], Field(fail_fast=True)] | None = None
    model: str | None = None
    cache_salt: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    extra_key: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    priority: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    timeout: float | Annotated[list[float], Field(fail_fast=True)] | None = None
    routed_dp_rank: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    no_logs: bool | None = None
    log_metrics: bool | None = None
