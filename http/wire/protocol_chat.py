"""POST /v1/chat/completions: the request."""

from typing import Annotated, Any

from pydantic import Field

from palladio.http.wire.protocol import SamplingFields
from palladio.http.wire.protocol_reasoning import ReasoningFields
from palladio.http.wire.protocol_tools import ToolFields


class ChatRequest(SamplingFields, ReasoningFields, ToolFields):
    """Messages stay plain objects: keys that this server does not know reach the chat template, which may read them."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
