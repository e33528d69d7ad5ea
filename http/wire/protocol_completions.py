"""POST /v1/completions: the request."""

from typing import Annotated, TypeGuard

from pydantic import PlainValidator, WithJsonSchema

from palladio.http.wire.protocol import SamplingFields

Prompt = str | list[str] | list[int] | list[list[int]]

_INT = {int}  # and not bool
_IDS = {"type": "array", "items": {"type": "integer"}}
_FORMS = (
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}},
    _IDS,
    {"type": "array", "items": _IDS},
)


def is_token_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and set(map(type, value)) <= _INT  # a quarter of the time of a loop


def _check_prompt(value: object) -> object:
    """One pass over what may be a million token ids, and one message in place of an error per branch and item."""
    if isinstance(value, str) or is_token_ids(value):
        return value
    if isinstance(value, list) and (
        all(isinstance(item, str) for item in value) or all(is_token_ids(item) for item in value)
    ):
        return value
    raise ValueError("must be a string, a list of strings, a list of token ids or a list of lists of token ids")


PromptField = Annotated[Prompt, PlainValidator(_check_prompt), WithJsonSchema({"anyOf": [*_FORMS]})]


class CompletionRequest(SamplingFields):
    prompt: PromptField
    echo: bool | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None


class RenderCompletionRequest(CompletionRequest):
    return_token_offsets: bool | None = None
