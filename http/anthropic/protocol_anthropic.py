"""Anthropic's POST /v1/messages and /v1/messages/count_tokens: the requests."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import AtMost, RequestFields, WireModel
from palladio.http.wire.protocol_chat import Objects
from palladio.runtime.interface.request.sampling_params import MAX_STOP_STRINGS


class MessageThinking(WireModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessageOutputConfig(WireModel):
    """What the format looks like is checked when it is read."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(RequestFields):
    """What a prompt is made of. Messages are read by AnthropicChat, which checks the other objects, too."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    model: str | None = None
    system: str | Objects | None = None
    tools: Objects | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: MessageThinking | None = None
    output_config: MessageOutputConfig | None = None
    output_format: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    """Ranges are checked by SamplingParams and RequestOptions."""

    max_tokens: int
    thread: dict[str, Any] | None = None
    stop_sequences: Annotated[
        Annotated[list[str], Field(fail_fast=True)] | None, AtMost(MAX_STOP_STRINGS, "strings")
    ] = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout: float | None = None
