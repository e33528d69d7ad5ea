"""The fields of a request that are about reasoning."""

from typing import Annotated, Literal

from pydantic import Field

from palladio.http.wire.protocol import ParsedText, WireModel

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
    thinking_token_budget: int | None = None
    max_thinking_tokens: int | None = None


class SeparateReasoningRequest(WireModel):
    """POST /separate_reasoning."""

    text: ParsedText
    reasoning_parser: Annotated[str, Field(min_length=1)] | None = None
