"""Request fields that routes share, and what becomes of those that a route does not have."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic
from pydantic import ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.generation_request import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from palladio.runtime.interface.token_rules import MAX_ALLOWED_IDS, MAX_STOP_PATTERNS

METADATA: Mapping[str, str] = {
    "user": "names the client's end user; nothing here depends on it",
    "safety_identifier": "OpenAI's newer name for user",
    "metadata": "labels for OpenAI's dashboard",
    "client_metadata": "names the client's installation and session, as Codex does",
    "store": "OpenAI's dashboard storage; completions are not stored here",
    "service_tier": "OpenAI's price tiers; there is one tier here",
    "prompt_cache_key": "a routing hint; the prefix cache works without it",
    "prompt_cache_retention": "a cache lifetime hint; --radix-eviction-policy says what is evicted here",
    "prompt_cache_options": "cache hints; the prefix cache works without them",
    "cache_control": "Anthropic's cache hints; likewise",
    "guided_decoding_backend": "names one of vLLM's libraries; there is one here",
    "prediction": "a guess at the answer that may make it faster; it changes no token",
    "audio": "says how an answer in audio sounds; modalities that ask for one are refused",
}

_EMPTY: tuple[object, ...] = (False, "", [], {})


@dataclasses.dataclass(frozen=True)
class NotYet:
    """A field that is refused.

    Attributes:
        neutral: values that ask for nothing, and pass.
        instead: what the client can do for now.
    """

    neutral: tuple[object, ...] = ()
    instead: str = ""

    def passes(self, value: object) -> bool:
        return any(type(value) is type(n) and value == n for n in (*_EMPTY, *self.neutral))


NOT_YET: Mapping[str, NotYet] = {
    # sampling
    "best_of": NotYet((1, 0), "use n"),
    "use_beam_search": NotYet(),
    "length_penalty": NotYet((1, 1.0)),
    "bad_words": NotYet(instead="use logit_bias"),
    "logprob_token_ids": NotYet(),
    "repetition_detection": NotYet(),
    "custom_logit_processor": NotYet(),
    "custom_params": NotYet(),
    "truncate_prompt_tokens": NotYet(instead="start the server with --allow-auto-truncate, or shorten the prompt"),
    "stream_interval": NotYet((1,), "start the server with --stream-interval"),
    # chat
    "chat_template": NotYet(instead="use /v1/chat/completions, or start the server with --chat-template"),
    "documents": NotYet(instead="put them in a message"),
    "verbosity": NotYet(("medium",)),
    "web_search_options": NotYet(),
    "moderation": NotYet(),
    "modalities": NotYet((["text"],)),
    "input_ids": NotYet(instead="use /v1/chat/completions, /generate, or prompt of /v1/completions"),
    # responses and Anthropic's messages
    "conversation": NotYet(instead="use previous_response_id"),
    "context_management": NotYet(),
    "container": NotYet(),
    "mcp_servers": NotYet(),
    # completions
    "suffix": NotYet(),
    "prompt_embeds": NotYet(),
    "return_tokens_as_token_ids": NotYet(instead="use return_token_ids"),
    # the engine
    "lora_path": NotYet(),
    "session_params": NotYet(),
    "session_id": NotYet(),
    "return_hidden_states": NotYet(),
    "return_routed_experts": NotYet(),
    "mm_processor_kwargs": NotYet(),
    "media_io_kwargs": NotYet(),
    "kv_transfer_params": NotYet(),
    "bootstrap_host": NotYet(),
    "bootstrap_port": NotYet(),
    "bootstrap_room": NotYet(),
    "dp_rank": NotYet((0,), "use routed_dp_rank"),
    "vllm_xargs": NotYet(),
    # native /generate
    "image_data": NotYet(),
    "video_data": NotYet(),
    "audio_data": NotYet(),
    "input_embeds": NotYet(),
    "token_ids_logprob": NotYet(),
    "background": NotYet(),
}


GRAMMAR_FIELDS = frozenset(  # implemented, but refused by a server with --grammar-backend none
    {"response_format", "json_schema", "regex", "ebnf", "structural_tag", "structured_outputs"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
BUDGET_FIELDS = frozenset({"thinking_token_budget", "max_thinking_tokens"})  # likewise, without a reasoning parser
TOOL_FIELDS = frozenset({"tools", "functions"})  # likewise, in conversations whose chat template does not write tools


def verdicts(known: Iterable[str], *, has_grammars: bool, has_reasoning: bool, has_tools: bool) -> dict[str, str]:
    """What becomes of each field of a request with a body: applied, metadata or refused; any other one is unknown.

    Args:
        known: names of the implemented fields.
        has_grammars: the server compiles grammars.
        has_reasoning: it knows how the model reasons.
        has_tools: the chat template writes tools.
    """
    names = frozenset(known)
    missing = (frozenset() if has_grammars else GRAMMAR_FIELDS) | (frozenset() if has_reasoning else BUDGET_FIELDS)
    if not has_tools and "tool_choice" in names:  # a parser on its own writes none
        missing |= TOOL_FIELDS
    applied = {name: "refused" if name in missing else "applied" for name in names}
    return dict.fromkeys(NOT_YET, "refused") | dict.fromkeys(METADATA, "metadata") | applied


def screen(data: Mapping[str, Any], known: Iterable[str], *, where: str = "") -> dict[str, Any]:
    """The fields of a request that its model implements.

    Args:
        data: the request, a JSON object.
        known: names of the implemented fields.
        where: path of the object within the request, such as "sampling_params.".

    Raises:
        InvalidRequestError: a field is not supported yet, or unknown.
    """
    names = set(known)
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if value is None:
            continue
        if name in names:
            kept[name] = value
        elif name in NOT_YET:
            _refuse(name, value, where)
        elif name not in METADATA:
            close = difflib.get_close_matches(name[:80], [*names, *METADATA], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidRequestError(
                f"unknown field: {where}{name[:200]}{hint}", param=f"{where}{name[:200]}", code="unknown_parameter"
            )
    return kept


def _refuse(name: str, value: object, where: str) -> None:
    rule = NOT_YET[name]
    if rule.passes(value):
        return
    hint = f" ({rule.instead})" if rule.instead else ""
    raise InvalidRequestError(
        f"not supported yet: {where}{name}{hint}", param=f"{where}{name}", code="unsupported_parameter"
    )


def check_tool_fields(
    tool: Mapping[str, Any], path: str, known: Collection[str], neutral: Mapping[str, object]
) -> None:
    """
    Args:
        path: of the tool in the request.
        known: fields that take effect.
        neutral: values of other fields that ask for nothing.

    Raises:
        InvalidRequestError: a field that is not known has another value.
    """
    for name, value in tool.items():
        if name not in known and (name not in neutral or value != neutral[name]):
            field = f"{path}.{name[:200]}"
            raise InvalidRequestError(f"not supported yet: {field}", param=field, code="unsupported_parameter")


MAX_FIELDS = 256  # of an object whose fields are known
MAX_PARSED_TEXT = 1 << 20  # characters
MAX_CHOICES = 1 << 16  # more are more than any grammar may be long

RequestId = Annotated[str, Field(min_length=1, max_length=256)]
ParsedText = Annotated[str, Field(max_length=MAX_PARSED_TEXT)]  # for a parser on its own


class AtMost:
    """In an annotation: how many entries a list or an object may have. Looked at before any of them is, and before all
    errors of a large one are collected.

    Args:
        unit: what they are, for the message.
    """

    def __init__(self, limit: int, unit: str = "entries") -> None:
        self._limit = limit
        self._unit = unit

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: object) -> object:
        if isinstance(value, list | dict) and len(value) > self._limit:
            raise ValueError(f"takes at most {self._limit} {self._unit}, got {len(value)}")
        return value


class WireModel(pydantic.BaseModel):
    """A JSON object as clients send it. Strict: no number is taken from a string."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, data: object) -> object:
        """Each unknown one would be an error of its own."""
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError(f"takes at most {MAX_FIELDS} fields, got {len(data)}")
        return data

    @classmethod
    def parse(cls, data: object) -> Self:
        """Builds from decoded JSON.

        Raises:
            InvalidRequestError: a field is unknown, not supported yet, or of the wrong type; `param` is its path.
        """
        if not isinstance(data, dict):
            raise InvalidRequestError("the request body must be a JSON object")
        kept = screen(data, cls.model_fields)
        try:
            return cls.model_validate(kept)
        except pydantic.ValidationError as exc:
            raise _readable(exc, kept) from None


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class PromptFields(WireModel):
    """Fields of every request with one prompt or several that are treated alike."""

    model: str | None = None
    rid: RequestId | None = None
    request_id: RequestId | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    timeout: float | None = None
    routed_dp_rank: int | None = None
    no_logs: bool | None = None
    log_metrics: bool | None = None


class SamplerFields(WireModel):
    """Fields that say how tokens are sampled, as all routes call them. Ranges are checked by SamplingParams."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: Annotated[str | Annotated[list[str], Field(fail_fast=True)] | None, AtMost(MAX_STOP_STRINGS, "strings")] = (
        None
    )
    stream: bool | None = None


class SamplingFields(SamplerFields, PromptFields):
    """Fields of chat and text completions alike. Ranges are checked by SamplingParams and RequestOptions."""

    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    logit_bias: Annotated[dict[str, float] | None, AtMost(MAX_LOGIT_BIAS)] = None
    allowed_token_ids: Annotated[Annotated[list[int], Field(fail_fast=True)] | None, AtMost(MAX_ALLOWED_IDS, "ids")] = (
        None
    )
    stop_token_ids: Annotated[Annotated[list[int], Field(fail_fast=True)] | None, AtMost(MAX_STOP_TOKEN_IDS, "ids")] = (
        None
    )
    stop_regex: Annotated[
        str | Annotated[list[str], Field(fail_fast=True)] | None, AtMost(MAX_STOP_PATTERNS, "patterns")
    ] = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    stream_options: StreamOptions | None = None
    return_timings: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Annotated[list[str], Field(fail_fast=True)] | None, AtMost(MAX_CHOICES, "choices")] = None
    guided_grammar: str | None = None


def _readable(exc: pydantic.ValidationError, data: Mapping[str, Any]) -> InvalidRequestError:
    """The errors of the first wrong field, as one sentence.

    A union reports the errors of all its branches: the branch that got deepest is the one that was meant, and errors
    at the same place are joined.
    """
    paths: dict[str, list[str]] = {}
    for error in exc.errors(include_url=False):
        reason = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        paths.setdefault(_path(error["loc"], data, is_missing=error["type"] == "missing"), []).append(reason)
    field = next(iter(paths)).partition(".")[0]
    path = max((path for path in paths if path.partition(".")[0] == field), key=lambda path: path.count("."))
    reasons = paths[path]
    return InvalidRequestError(f"{path}: {' or '.join(dict.fromkeys(reasons))}", param=path)


def _path(location: Sequence[str | int], data: object, *, is_missing: bool) -> str:
    """The dotted path of a location, without the names of union branches that pydantic puts in.

    Args:
        is_missing: the last step names what `data` has not.
    """
    names: list[str] = []
    for position, step in enumerate(location):
        if isinstance(data, dict) and isinstance(step, str):
            known = step in data
            if known or (is_missing and position == len(location) - 1):
                names.append(step)
                data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int):
            names.append(str(step))
            data = data[step] if step < len(data) else None
    return ".".join(names)
