"""POST /v1/chat/completions: the request, with the fields about tools and reasoning that other routes share."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from palladio.http.wire.protocol import ParsedText, SamplingFields, WireModel
from palladio.http.wire.protocol_completions import is_token_ids

Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class ToolFields(WireModel):
    """What the tools look like is checked when they are read: the errors then name the tool."""

    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None


class TemplateFields(WireModel):
    """How a conversation is rendered."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ParseFunctionCallRequest(WireModel):
    """POST /parse_function_call."""

    text: ParsedText
    tools: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    tool_call_parser: Annotated[str, Field(min_length=1)] | None = None


Verbosity = Literal["low", "medium", "high"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(WireModel):
    """`reasoning`, as OpenRouter's and OpenAI's clients write it."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: int | None = None


class ThinkingOptions(WireModel):
    """`thinking`, as Anthropic's and DeepSeek's clients write it."""

    type: Literal["enabled", "disabled"]
    budget_tokens: int | None = None


class ReasoningFields(WireModel):
    """What they come to depends on the model: `ReasoningPlan`."""

    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    thinking: bool | ThinkingOptions | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = None
    max_thinking_tokens: int | None = None


class SeparateReasoningRequest(WireModel):
    """POST /separate_reasoning."""

    text: ParsedText
    reasoning_parser: Annotated[str, Field(min_length=1)] | None = None


MAX_TEMPLATE = 1 << 16  # characters: compiling so much takes a fifth of a second


def _check_ids(value: object) -> object:
    if not is_token_ids(value):
        raise ValueError("must be a list of token ids")
    return value


PromptIds = Annotated[
    list[int], PlainValidator(_check_ids), WithJsonSchema({"type": "array", "items": {"type": "integer"}})
]


class ChatRequest(SamplingFields, ReasoningFields, ToolFields, TemplateFields):
    """Messages stay plain objects: keys that this server does not know reach the chat template, which may read them."""

    input_ids: PromptIds | None = None  # in place of messages
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = []  # noqa: RUF012 (frozen)
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    verbosity: Verbosity | None = None


class RenderChatRequest(ChatRequest):
    return_token_offsets: bool | None = None


class BatchChatRequest(SamplingFields, ReasoningFields, TemplateFields):
    """POST /v1/chat/completions/batch, vLLM's: several conversations, answered with the same fields."""

    messages: Annotated[
        list[Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]], Field(min_length=1, fail_fast=True)
    ]
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    verbosity: Verbosity | None = None
