"""POST /generate, SGLang's native route: the request."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from palladio.http.wire.protocol import RequestFields, RequestId
from palladio.http.wire.protocol_completions import is_token_ids

_IDS = {"type": "array", "items": {"type": "integer"}}


def _check_ids(value: object) -> object:
    if is_token_ids(value) or (isinstance(value, list) and all(is_token_ids(item) for item in value)):
        return value
    raise ValueError("must be a list of token ids or a list of lists of token ids")


TokenIds = Annotated[
    list[int] | list[list[int]],
    PlainValidator(_check_ids),
    WithJsonSchema({"anyOf": [_IDS, {"type": "array", "items": _IDS}]}),
]


def _check_asked(value: object) -> object:
    entries = value if isinstance(value, list) else [value]
    if is_token_ids(entries) or all(entry is None or is_token_ids(entry) for entry in entries):
        return value
    raise ValueError("must be a list of token ids, or a list with one such list per prompt")


AskedIds = Annotated[  # one list is for all prompts
    int | list[int] | list[list[int] | None],
    PlainValidator(_check_asked),
    WithJsonSchema({"anyOf": [{"type": "integer"}, _IDS, {"type": "array", "items": _IDS}]}),
]


class NativeFields(RequestFields):
    """Fields of SGLang's routes alike. A list in `text` or `input_ids` makes a batch; the per-prompt fields then take a
    list or one value for all."""

    text: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    input_ids: TokenIds | None = None
    rid: RequestId | Annotated[list[RequestId], Field(fail_fast=True)] | None = None
    model: str | None = None
    cache_salt: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    extra_key: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    priority: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    timeout: float | Annotated[list[float], Field(fail_fast=True)] | None = None
    routed_dp_rank: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    no_logs: bool | None = None
    log_metrics: bool | None = None


_ROWS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_ENCODED = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "dtype": {"type": "string", "enum": ["float32", "bfloat16"]},
    },
}
_ONE_PROMPT = [_ROWS, _ENCODED]


def _check_embeds(value: object) -> object:
    """What is in it, `read_embeds` looks at, with the model's sizes."""
    if isinstance(value, list | dict):
        return value
    raise ValueError("must be a list of rows of numbers, an object with data, shape and dtype, or a list of those")


Embeds = Annotated[
    list[Any] | dict[str, Any],
    PlainValidator(_check_embeds),
    WithJsonSchema({"anyOf": [*_ONE_PROMPT, {"type": "array", "items": {"anyOf": _ONE_PROMPT}}]}),
]


class GenerateRequest(NativeFields):
    input_embeds: Embeds | None = None
    sampling_params: dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    stream: bool | None = None
    return_logprob: bool | Annotated[list[bool], Field(fail_fast=True)] | None = None
    logprob_start_len: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    top_logprobs_num: int | Annotated[list[int], Field(fail_fast=True)] | None = None
    token_ids_logprob: AskedIds | None = None
    return_text_in_logprobs: bool | None = None
    record_timeline: bool | None = None
    return_progress: bool | None = None
