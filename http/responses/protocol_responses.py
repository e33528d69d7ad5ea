"""POST /v1/responses and /v1/responses/input_tokens: the requests."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import AtMost, RequestFields, RequestId, SamplerFields, WireModel
from palladio.http.wire.protocol_chat import Effort, Objects, Verbosity

Summary = Literal["auto", "concise", "detailed"]
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # OpenAI's

MetadataKey = Annotated[str, Field(max_length=MAX_METADATA_KEY)]
MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_VALUE)]


class ResponseReasoning(WireModel):
    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseText(WireModel):
    """What the format looks like is checked when it is read: the errors then name the place."""

    format: dict[str, Any] | None = None
    verbosity: Verbosity | None = None


class ResponseStreamOptions(WireModel):
    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class InputTokensRequest(RequestFields):
    """What a prompt is made of."""

    model: str | None = None
    input: str | Objects | None = None
    instructions: str | None = None
    previous_response_id: RequestId | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ResponseReasoning | None = None
    text: ResponseText | None = None
    truncation: Literal["auto", "disabled"] | None = None


class ResponseRequest(InputTokensRequest, SamplerFields):
    """Ranges are checked by SamplingParams and RequestOptions."""

    background: bool | None = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue] | None, AtMost(MAX_METADATA, "pairs")] = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    top_logprobs: int | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout: float | None = None
    return_progress: bool | None = None
