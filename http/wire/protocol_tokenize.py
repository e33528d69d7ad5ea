"""POST /tokenize and /detokenize: the requests."""

from typing import Annotated, Any

from pydantic import Field

from palladio.http.wire.protocol import WireModel
from palladio.http.wire.protocol_chat import Effort, Objects, TemplateFields
from palladio.http.wire.protocol_generate import TokenIds


class TokenizeRequest(TemplateFields):
    """One of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    tokens: TokenIds
    model: str | None = None
    skip_special_tokens: bool | None = None
