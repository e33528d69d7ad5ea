"""A request's fields that say which language its output must be in: OpenAI's, SGLang's and vLLM's names → a Grammar."""

from collections.abc import Iterator, Mapping
from typing import Any

from palladio.http.protocol import SamplingFields
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.grammar_spec import Grammar, GrammarKind

_STRUCTURED: Mapping[str, GrammarKind] = {  # in vLLM's structured_outputs
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}
_WHITESPACE = ("whitespace_pattern", "disable_any_whitespace")
_ANY_OBJECT = '{"type": "object"}'


def structured_output(body: SamplingFields) -> tuple[Grammar, str] | None:
    """The grammar of a request's output, and the field that asks for it; None: any text.

    Raises:
        InvalidRequestError: a field is malformed, or two ask for different things; `param` names it.
    """
    found = [*_direct(body), *_response_format(body.response_format), *_structured_outputs(body.structured_outputs)]
    if len(found) > 1:
        names = [field for _, field in found]
        raise InvalidRequestError(f"{' and '.join(names)} exclude each other; give one", param=names[-1])
    return found[0] if found else None


def grammar_field(body: SamplingFields) -> str:
    """The field that asks for the grammar; there is one."""
    found = structured_output(body)
    assert found is not None
    return found[1]


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
    for name, kind, value in fields:
        if value is not None:
            yield Grammar.of(kind, value, name), name


def _response_format(value: Mapping[str, Any] | None) -> Iterator[tuple[Grammar, str]]:
    field = "response_format"
    match value:
        case None | {"type": "text"}:
            return
        case {"type": "json_object"}:
            schema = value.get("schema")
            yield Grammar("json_schema", _ANY_OBJECT) if schema is None else _of("json_schema", schema, field), field
        case {"type": "json_schema"}:
            yield _of("json_schema", _schema(value.get("json_schema")), f"{field}.json_schema.schema"), field
        case {"type": "structural_tag"}:
            yield _of("structural_tag", {k: v for k, v in value.items() if k != "type"}, field), field
        case {"type": "regex" | "ebnf" as kind}:
            if kind not in value:
                raise InvalidRequestError(f"{field}.{kind} is missing", param=f"{field}.{kind}")
            yield _of("regex" if kind == "regex" else "ebnf", value[kind], f"{field}.{kind}"), field
        case _:
            raise InvalidRequestError(
                f"{field}.type must be text, json_object, json_schema, structural_tag, regex or ebnf, got "
                f"{value.get('type')!r}",
                param=f"{field}.type",
            )


def _schema(wrapper: object) -> object:
    """What OpenAI puts round a schema: {"name": …, "schema": …, "strict": …}. A schema is kept to, strict or not."""
    path = "response_format.json_schema"
    if not isinstance(wrapper, Mapping):
        raise InvalidRequestError(f"{path} must be an object with a schema", param=path)
    if wrapper.get("schema") is None:
        raise InvalidRequestError(f"{path}.schema is missing", param=f"{path}.schema")
    return wrapper["schema"]


def _structured_outputs(value: Mapping[str, Any] | None) -> Iterator[tuple[Grammar, str]]:
    if value is None:
        return
    field = "structured_outputs"
    given = {name: entry for name, entry in value.items() if entry is not None and entry is not False}
    options = {name: given.pop(name) for name in _WHITESPACE if name in given}
    wants_object = given.pop("json_object", None)
    for name in given:
        if name not in _STRUCTURED:
            raise InvalidRequestError(f"unknown field: {field}.{name}", param=f"{field}.{name}")
    if len(given) + bool(wants_object) > 1:
        names = ", ".join([*given, *(["json_object"] if wants_object else [])])
        raise InvalidRequestError(f"{field} takes one of its fields, got {names}", param=field)
    for name, entry in given.items():
        yield _of(_STRUCTURED[name], _with_whitespace(entry, options), f"{field}.{name}"), field
    if wants_object:
        yield _of("json_schema", _with_whitespace({"type": "object"}, options), field), field


def _with_whitespace(schema: object, options: Mapping[str, Any]) -> object:
    """Whitespace options stand in the schema itself, where llguidance reads them."""
    if not options or not isinstance(schema, Mapping):
        return schema
    pattern = options.get("whitespace_pattern")
    if options.get("disable_any_whitespace"):
        return {**schema, "x-guidance": {"whitespace_flexible": False, "whitespace_pattern": None}}
    return {**schema, "x-guidance": {"whitespace_pattern": pattern}}


def _of(kind: GrammarKind, value: object, param: str) -> Grammar:
    return Grammar.of(kind, value, param)
