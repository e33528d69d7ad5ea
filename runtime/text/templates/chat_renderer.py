"""Renders chat templates in a sandbox, which says what they may do."""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from palladio.runtime.text.templates.template_limits import check_size
from palladio.runtime.text.templates.template_meter import Meter, current_meter, measure, ticked
from palladio.runtime.text.templates.template_sandbox import TemplateSandbox

MAX_SECONDS = 10.0
MAX_TEMPLATES = 32  # compiled ones that are kept: a model has one or two, and a probe or two of its own
_MAX_DATE = 1000  # characters of a date's format

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    continue_final_message: bool,
    seconds: float = MAX_SECONDS,
    **variables: Any,
) -> str:
    """The text of a conversation.

    Args:
        continue_final_message: end it with the last message's content.
        seconds: that it may take.
        variables: what else the template gets.

    Raises:
        TemplateError: the template is malformed, refuses the messages, takes too long or makes too much text.
        ValueError: there is no final message to continue, or the template does not show it as it is.
        Exception: what the template's code raises with these values: any of Python's for values that do not fit.
    """
    token = current_meter.set(Meter(seconds))
    try:
        compiled = compile_template(template)
        prepared = [_prepare(message) for message in messages]
        if not continue_final_message:
            return compiled.render(messages=prepared, documents=None, **variables)
        text = _mark_end(prepared, template)
        rendered = compiled.render(messages=prepared, documents=None, **variables)
        return _cut_at_mark(rendered, text)
    finally:
        current_meter.reset(token)


def _prepare(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without keys that hold None, and with reasoning under the names that templates read."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING_FIELDS if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _mark_end(messages: list[dict[str, Any]], template: str) -> str:
    """Puts a mark behind the text that is continued, and returns that text."""
    content = messages[-1].get("content")
    if content is None or "content" not in template:
        raise ValueError("the final message has no content to continue, or the template does not show it")
    if not isinstance(content, list):
        messages[-1]["content"] = content + _CONTINUED
        return str(content)
    parts = [dict(part) for part in content]
    last = next((part for part in reversed(parts) if "text" in part), None)
    if last is None:
        raise ValueError("the final message has no text to continue")
    text = str(last["text"])
    last["text"] = text + _CONTINUED
    messages[-1]["content"] = parts
    return text


def _cut_at_mark(rendered: str, text: str) -> str:
    mark = _CONTINUED.strip()
    if text.strip() not in rendered or mark not in rendered:
        raise ValueError("the chat template does not show the final message as it is, so it cannot be continued")
    end = rendered.rindex(mark)
    kept = rendered[:end]
    return kept if rendered[end:].startswith(_CONTINUED) else kept.rstrip()  # the template has cut its end off


@functools.lru_cache(maxsize=MAX_TEMPLATES)
def compile_template(template: str) -> jinja2.Template:
    """Compile a template.

    Raises:
        TemplateError, SyntaxError, RecursionError, MemoryError: it is malformed, or too much to compile.
    """
    check_size(template)
    sandbox = TemplateSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    sandbox.filters["tojson"] = _to_json
    sandbox.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return sandbox.from_string(template)


class GenerationTag(Extension):
    """`{% generation %}` blocks, which mark what the model wrote: for training, so their text alone matters here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes what HTML does not like."""
    if isinstance(indent, int) and indent > 64:
        raise jinja2.TemplateRuntimeError(f"tojson takes an indent of at most 64, not {indent}")
    return json.dumps(
        measure(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_DATE:
        raise jinja2.TemplateRuntimeError(f"strftime_now takes a format of at most {_MAX_DATE} characters")
    return datetime.datetime.now().strftime(form)


class _Dict:
    """`dict` as a function: no class, whose attributes could be read."""

    def __call__(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # the first one is the object: `dict(self=…)` is allowed
        return dict(*map(_items, args[1:]), **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(ticked(keys), value)


class _Namespace(Namespace):
    """`namespace`, whose attributes begin with no underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # the first one is the object: `namespace(self=…)` is allowed
        attributes = dict(*map(_items, args[1:]), **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(args[0], attributes)

    def __repr__(self) -> str:
        """Not its values, which may be long as a text."""
        return "<Namespace>"

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _items(value: Any) -> Any:
    """What a dictionary is made of."""
    return value if isinstance(value, dict) else ticked(value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace's attributes must not begin with _, got {name!r}")
