"""Request fields that routes share, and what happens to fields that a route does not have."""

import functools
import json
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic
from pydantic import ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from palladio.http.wire.fields import WarningList
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.native_panics import PanicGuard
from palladio.runtime.interface.request.field_tables import METADATA, SAME_AS
from palladio.runtime.interface.request.foreign_fields import check_field
from palladio.runtime.interface.request.sampling_params import (
    MAX_ALLOWED_IDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_IDS,
    MAX_STOP_PATTERNS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

_reading = PanicGuard("what reads requests")


def screen(
    data: Mapping[str, Any], known: Collection[str], *, where: str = "", warnings: WarningList | None = None
) -> dict[str, Any]:
    """The fields of a request that its model implements.

    Args:
        data: the request, a JSON object.
        known: names of the implemented fields.
        where: path of the object within the request, such as "sampling_params.".
        warnings: unknown fields may pass with a warning; None: each is an error.

    Raises:
        InvalidRequestError: a field is not supported yet, or unknown.
    """
    kept: dict[str, Any] = {}
    elsewhere = functools.cache(_fields_elsewhere)  # for these fields
    for name, value in data.items():
        if value is None:
            continue
        if name in known:
            kept[name] = value
        elif name in SAME_AS and value == data.get(SAME_AS[name]):
            continue
        elif warnings is not None and warnings.has(f"{where}{name[:200]}"):
            continue  # in another entry of a list: looking for what was meant takes a while
        elif (refusal := check_field(name, value, known, elsewhere, where)) is not None:
            if refusal.is_final or warnings is None:
                raise refusal.error
            warnings.warn(refusal.error)
    return kept


def _fields_elsewhere() -> frozenset[str]:
    """The fields of all requests to a model, whatever the route. Not kept from call to call: the first one may
    come before the modules of all routes are imported."""

    def below(model: type[WireModel]) -> Iterator[str]:
        for derived in model.__subclasses__():
            yield from derived.model_fields
            yield from below(derived)

    return frozenset(below(RequestFields))


def check_tool_fields(
    tool: Mapping[str, Any], path: str, known: Collection[str], neutral: Mapping[str, object], warnings: WarningList
) -> None:
    """
    Args:
        path: of the tool in the request.
        known: fields that take effect.
        neutral: values of fields that ask for nothing; others are not supported.
        warnings: see `screen`.

    Raises:
        InvalidRequestError: a field has a value that is not supported, or is misspelt; or unknown, if none may pass.
    """
    for name, value in tool.items():
        if name in known or (name in neutral and value == neutral[name]):
            continue
        if name in neutral:
            field = f"{path}.{name}"
            raise InvalidRequestError(f"not supported yet: {field}", param=field, code="unsupported_parameter")
        if (refusal := check_field(name, value, {*known, *neutral}, tuple, f"{path}.")) is not None:
            if refusal.is_final:
                raise refusal.error
            warnings.warn(refusal.error)


class UnreadFields:
    """Reports fields of messages and their parts that the translation to chat messages drops: each name once, at its
    first place.

    Args:
        warnings: see `screen`.
    """

    def __init__(self, warnings: WarningList) -> None:
        self._warnings = warnings
        self._reported: set[str] = set()

    def report(self, part: Mapping[str, Any], path: str, known: Collection[str]) -> None:
        """
        Args:
            path: of the part in the request.
            known: fields that are read, or that only annotate.

        Raises:
            InvalidRequestError: there is another one, and none may pass.
        """
        for name, value in part.items():
            if value is not None and not (name in known or name in METADATA or name in self._reported):
                field = f"{path}.{name[:200]}"
                error = InvalidRequestError.of("unknown field: {param}", param=field, code="unknown_parameter")
                self._warnings.warn(error)
                self._reported.add(name)


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
        return with_whole_numbers(data, _integer_fields(cls)) if isinstance(data, dict) else data

    @classmethod
    def parse(cls, data: object, warnings: WarningList | None = None) -> Self:
        """Builds from decoded JSON.

        Args:
            warnings: see `screen`.

        Raises:
            InvalidRequestError: a field is unknown, not supported yet, or of the wrong type; `param` is its path.
        """
        if not isinstance(data, dict):
            raise InvalidRequestError("the request body must be a JSON object")
        kept = _screened(cls, data, "", warnings)
        try:
            with _reading:
                return cls.model_validate(kept)
        except pydantic.ValidationError as exc:
            raise _readable(exc, kept) from None


def _screened(
    model: type[WireModel], data: Mapping[str, Any], where: str, warnings: WarningList | None
) -> dict[str, Any]:
    """Return the fields that a model implements, and the fields of each object among them."""
    kept = screen(data, model.model_fields, where=where, warnings=warnings)
    for name, inner in _objects_of(model).items():
        if isinstance(value := kept.get(name), dict):
            kept[name] = _screened(inner, value, f"{where}{name}.", warnings)
    return kept


@functools.cache
def _objects_of(model: type[WireModel]) -> dict[str, type[WireModel]]:
    """The fields that take an object, and what it may hold."""
    hints = {name: field.annotation for name, field in model.model_fields.items()}
    return {
        name: part
        for name, hint in hints.items()
        for part in (hint, *typing.get_args(hint))
        if isinstance(part, type) and issubclass(part, WireModel)
    }


_EXACT = 2**53  # up to here, floating point numbers stand for one integer each


def with_whole_numbers(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields, where 4.0 is 4 if they are among the names: JSON has one type for both, and some clients use it."""
    return {
        name: int(value) if type(value) is float and name in names and _is_whole(value) else value
        for name, value in data.items()
    }


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) <= _EXACT


@functools.cache
def _integer_fields(model: type[WireModel]) -> frozenset[str]:
    """Return the fields that take integers and no other numbers."""
    types = {name: field.annotation for name, field in model.model_fields.items()}
    parts = {name: {hint, *typing.get_args(hint)} for name, hint in types.items()}
    return frozenset(name for name, hints in parts.items() if int in hints and float not in hints)


class UsageOptions(WireModel):
    """`usage`, as OpenRouter's clients write it."""

    include: bool | None = None


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class RequestFields(WireModel):
    """Fields of a request to a model. They can change the answer, so a route without one never drops it silently."""


class PromptFields(RequestFields):
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


class SamplerFields(RequestFields):
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
    logprob_token_ids: Annotated[Annotated[list[int], Field(fail_fast=True)] | None, AtMost(MAX_LOGPROB_IDS, "ids")] = (
        None
    )
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    stream_options: StreamOptions | None = None
    usage: UsageOptions | None = None
    return_timings: bool | None = None
    record_timeline: bool | None = None
    return_progress: bool | None = None
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
    guided_whitespace_pattern: str | None = None


def _readable(exc: pydantic.ValidationError, data: Mapping[str, Any]) -> InvalidRequestError:
    """The errors of the first wrong field, as one sentence.

    A union reports the errors of all its branches: the branch that got deepest is the one that was meant, and errors
    at the same place are joined.
    """
    paths: dict[str, list[str]] = {}
    inputs: dict[str, str] = {}
    for error in exc.errors(include_url=False):
        reason = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        path = _path(error["loc"], data, is_missing=error["type"] == "missing")
        paths.setdefault(path, []).append(reason)
        if error["type"] not in _WITHOUT_INPUT:
            inputs.setdefault(path, f", got {shown_input(error['input'])}")
    field = next(iter(paths)).partition(".")[0]
    path = max((path for path in paths if path.partition(".")[0] == field), key=lambda path: path.count("."))
    reasons = paths[path]
    return InvalidRequestError(f"{path}: {' or '.join(dict.fromkeys(reasons))}{inputs.get(path, '')}", param=path)


_WITHOUT_INPUT = frozenset({"missing", "value_error", "extra_forbidden"})  # the last two say themselves what is wrong


def shown_input(value: object) -> str:
    """A wrong value as an error shows it, in few characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


_MAX_SHOWN = 60


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
