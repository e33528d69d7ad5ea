"""Wire fields → SamplingParams, RequestOptions and the grammar."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from palladio.http.wire.body import read_json
from palladio.http.wire.fields import WarningList
from palladio.http.wire.protocol import PromptFields, SamplingFields, screen
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.interface.request.grammar_spec import Grammar, GrammarKind
from palladio.runtime.interface.request.sampling_params import MAX_LOGPROBS, SamplingParams

WORKED_OUT = frozenset(("max_tokens", "logprobs", "stop", "no_stop_trim"))  # from several fields, or by the route
ALL_TOKENS = -1  # vLLM's, which refuses it as well unless the server was started with a higher limit
SAME_NAME = SamplingFields.model_fields.keys() & SamplingParams.__dataclass_fields__.keys() - WORKED_OUT


def sampling_params(
    body: SamplingFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
) -> SamplingParams:
    """Builds the parameters of a chat or text completion.

    Args:
        body: the request.
        defaults: values of the fields that it does not give; max_tokens is for `default_length`.
        max_tokens, logprobs: these two have route-specific meanings, so the route works them out.
        grammar: of its `structured_output`.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    for name, count in (("logprobs", logprobs), ("prompt_logprobs", body.prompt_logprobs)):
        if count == ALL_TOKENS:
            message = "{param} -1 asks for all tokens of the vocabulary; there are at most {most}: give 0 … {most}"
            raise InvalidRequestError.of(message, param=name, most=MAX_LOGPROBS)
    values = body.model_dump(include=set(SAME_NAME))
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "no_stop_trim": _no_stop_trim(body)}
    values["grammar"] = grammar
    values["stop"] = body.stop or None  # "" and [] are how some clients spell "no stop strings"
    return SamplingParams.from_dict(values, defaults={key: defaults[key] for key in defaults if key != "max_tokens"})


def default_length(params: SamplingParams, defaults: Mapping[str, Any], of_route: int | None = None) -> int | None:
    """Return a GenerationRequest's default of max_tokens, which shrinks for a long prompt; None: the client gives
    max_tokens, or the rest of the context is the limit."""
    return defaults.get("max_tokens", of_route) if params.max_tokens is None else None


def request_options(body: PromptFields) -> RequestOptions:
    """
    Raises:
        InvalidRequestError: a value is out of range.
    """
    return RequestOptions.of(
        cache_salt=body.cache_salt,
        extra_key=body.extra_key,
        priority=body.priority,
        timeout=body.timeout,
        routed_dp_rank=body.routed_dp_rank,
        timeline=body.record_timeline if isinstance(body, SamplingFields) else None,
    )


def request_name(body: PromptFields, generated: str) -> str:
    """The request's id: the client's own (`rid` is SGLang's name, `request_id` vLLM's), or the generated one."""
    if body.rid is not None and body.request_id is not None and body.rid != body.request_id:
        raise InvalidRequestError("rid and request_id name the same parameter; give one", param="rid")
    return body.rid or body.request_id or generated


def check_scoring_only(body: SamplingFields, max_tokens: int | None, name: str, *, echo: bool = False) -> None:
    """max_tokens 0 only scores the prompt, and prompt_logprobs need a whole answer to stand in."""
    if max_tokens == 0 and body.prompt_logprobs is None and not echo:
        raise InvalidRequestError.of("{param} must be at least 1; 0 only scores the prompt", param=name)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("prompt_logprobs are not available with stream: true", param="prompt_logprobs")


def _no_stop_trim(body: SamplingFields) -> bool | None:
    ours, alias = body.no_stop_trim, body.include_stop_str_in_output
    if ours is not None and alias is not None and ours != alias:
        raise InvalidRequestError(
            "no_stop_trim and include_stop_str_in_output name the same parameter; give one", param="no_stop_trim"
        )
    return alias if ours is None else ours


_STRUCTURED: Mapping[str, GrammarKind] = {  # in vLLM's structured_outputs
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}
_WHITESPACE = ("whitespace_pattern", "disable_any_whitespace")
_OF_TYPE: Mapping[str, tuple[str, ...]] = {  # other fields of a response_format of this type
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    "structural_tag": ("structures", "triggers", "format"),
    "regex": ("regex",),
    "ebnf": ("ebnf",),
}
MAX_TEXT = 1 << 20  # characters of a grammar, white space included; the engine's own limit is of what remains
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_OPTIONS: Mapping[str, Any] = {}


def structured_output(body: SamplingFields, warnings: WarningList) -> tuple[Grammar | None, str]:
    """The grammar of a request's output, and the field that asks for it; None and "grammar": any text.

    Args:
        warnings: unknown fields may pass with one.

    Raises:
        InvalidRequestError: a field is malformed, or two ask for different things; `param` names it.
    """
    found = [*_direct(body)]
    found += _response_format(body.response_format, warnings)
    found += _structured_outputs(body.structured_outputs, warnings)
    if len(found) > 1:
        fields = [field for _, field in found]
        message = "{names} exclude each other; give one"
        raise InvalidRequestError.of(message, param=fields[-1], fields={"names": fields})
    return found[0] if found else (None, "grammar")


def _direct(body: SamplingFields) -> Iterator[tuple[Grammar, str]]:
    """SGLang's names, then vLLM's older ones."""
    fields: list[tuple[str, GrammarKind, object]] = [
        ("json_schema", "json_schema", body.json_schema),
        ("regex", "regex", body.regex),
        ("ebnf", "ebnf", body.ebnf),
        ("structural_tag", "structural_tag", body.structural_tag),
        ("guided_json", "json_schema", body.guided_json),
        ("guided_regex", "regex", body.guided_regex),
        ("guided_choice", "choice", body.guided_choice),
        ("guided_grammar", "ebnf", body.guided_grammar),
    ]
    pattern = body.guided_whitespace_pattern
    if pattern and body.guided_json is None:
        message, other = "{param} has no effect without {json}", {"json": "guided_json"}
        raise InvalidRequestError.of(message, param="guided_whitespace_pattern", fields=other)
    for name, kind, value in fields:
        if value is not None:
            options = {"whitespace_pattern": pattern} if pattern and name == "guided_json" else _NO_OPTIONS
            yield _grammar(kind, value, name, options), name


def _response_format(value: Mapping[str, Any] | None, warnings: WarningList) -> Iterator[tuple[Grammar, str]]:
    field = "response_format"
    given = {name: entry for name, entry in (value or {}).items() if entry is not None}
    kind = given.get("type")
    if value is None:
        return
    if not isinstance(kind, str) or kind not in _OF_TYPE:
        message = "{param} must be {known}, got {kind!r}"
        raise InvalidRequestError.of(message, param=f"{field}.type", known=", ".join(_OF_TYPE), kind=kind)
    given = _known(given, ("type", *_OF_TYPE[kind]), field, warnings)
    match kind:
        case "json_object":
            yield _grammar("json_schema", given.get("schema", _ANY_OBJECT), f"{field}.schema"), field
        case "json_schema":
            yield _grammar("json_schema", _schema(given.get(kind), warnings), f"{field}.json_schema.schema"), field
        case "structural_tag":
            yield _grammar(kind, {name: entry for name, entry in given.items() if name != "type"}, field), field
        case "regex" | "ebnf":
            if kind not in given:
                raise InvalidRequestError.of("{param} is missing", param=f"{field}.{kind}")
            yield _grammar(kind, given[kind], f"{field}.{kind}"), field


def _schema(wrapper: object, warnings: WarningList) -> object:
    """What OpenAI puts round a schema: {"name": …, "schema": …, "strict": …}. A schema is kept to, strict or not."""
    path = "response_format.json_schema"
    if not isinstance(wrapper, Mapping):
        raise InvalidRequestError.of("{param} must be an object with a schema", param=path)
    given = _known(wrapper, ("name", "description", "schema", "strict"), path, warnings)
    if "schema" not in given:
        raise InvalidRequestError.of("{param} is missing", param=f"{path}.schema")
    schema: object = given["schema"]
    return schema


def _structured_outputs(value: Mapping[str, Any] | None, warnings: WarningList) -> Iterator[tuple[Grammar, str]]:
    field = "structured_outputs"
    given = _known(value or {}, (*_STRUCTURED, "json_object", *_WHITESPACE), field, warnings)
    for name, kind in (("json_object", bool), ("disable_any_whitespace", bool), ("whitespace_pattern", str)):
        if not isinstance(given.get(name, kind()), kind):
            expected = "true or false" if kind is bool else "a string"
            raise InvalidRequestError.of("{param} must be {form}", param=f"{field}.{name}", form=expected)
        if given.get(name) is False:
            del given[name]
    options = {name: given.pop(name) for name in _WHITESPACE if name in given}
    if len(given) > 1:
        message = "{param} must set exactly one of its fields, got {names}"
        raise InvalidRequestError.of(message, param=field, names=", ".join(given))
    if options:
        option = f"{field}.{next(iter(options))}"
        if len(options) > 1:
            message, both = "{field}: {names} exclude each other; give one", " and ".join(options)
            raise InvalidRequestError.of(message, param=option, fields={"field": field}, names=both)
        if not given.keys() & {"json", "json_object"}:
            raise InvalidRequestError.of("{param} has no effect without json or json_object", param=option)
    for name, entry in given.items():
        path = f"{field}.{name}"
        if name == "json_object":
            yield _grammar("json_schema", _ANY_OBJECT, path, options), field
        else:
            yield _grammar(_STRUCTURED[name], entry, path, options), field


_OF_GRAMMARS = frozenset(("schema", "json_object", *_WHITESPACE, *_STRUCTURED)).union(*_OF_TYPE.values())


def _known(given: Mapping[str, Any], known: Collection[str], path: str, warnings: WarningList) -> dict[str, Any]:
    """The fields of an object that have an effect there. One that says elsewhere what an output must be like is never
    left out."""
    for name in given:
        if name in _OF_GRAMMARS and name not in known:
            message, field = "{param} has no effect there; known: {known}", f"{path}.{name}"
            raise InvalidRequestError.of(message, param=field, known=", ".join(known), code="unknown_parameter")
    return screen(given, known, where=f"{path}.", warnings=warnings)


def _grammar(kind: GrammarKind, value: object, path: str, options: Mapping[str, Any] = _NO_OPTIONS) -> Grammar:
    """
    Args:
        value: as the client gives it: schemas and tags are JSON, or text of JSON.
        path: of the value in the request.
        options: of white space in JSON.
    """
    if (len(value) if isinstance(value, str) else len(orjson.dumps(value))) > MAX_TEXT:  # before it is written slowly
        raise InvalidRequestError.of("{param} is over the limit of {most} characters", param=path, most=MAX_TEXT)
    if kind in ("json_schema", "structural_tag") and isinstance(value, str) and value.strip():
        read = read_json(value, param=path)
        value = value if Grammar.of(kind, read, path) and not options else read
    return Grammar.of(kind, _with_whitespace(value, options), path)


def _with_whitespace(schema: object, options: Mapping[str, Any]) -> object:
    """White space options stand in the schema itself, where llguidance reads them."""
    if schema is True:
        schema = {}
    if not options or not isinstance(schema, Mapping):
        return schema
    if options.get("disable_any_whitespace"):
        return {**schema, "x-guidance": {"whitespace_flexible": False, "whitespace_pattern": None}}
    return {**schema, "x-guidance": options}
