"""Formats whose calls carry their arguments as JSON: parser, grammar and special tokens of each."""

import functools
from collections.abc import Callable

from palladio.http.tool_calls.generic_json import GenericJsonParser
from palladio.http.tool_calls.grammars.grammar import CallSyntax, json_arguments
from palladio.http.tool_calls.grammars.lark import Rules, quoted
from palladio.http.tool_calls.json_families import (
    ApertusParser,
    DeepSeekParser,
    GigaChat3Parser,
    GptOssParser,
    InklingParser,
    InternlmParser,
    KimiK2Parser,
    Llama3Parser,
    MistralParser,
    PlainJsonParser,
    Plamo3Parser,
    TaggedJsonParser,
    Tags,
)
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.output import mistral_id
from palladio.http.tool_calls.tool_format import ToolFormat


def json_begin(arguments_key: str, before: str = "") -> Callable[[str], str]:
    """Write `{"name": …, "arguments": ` of a function, for CallSyntax.

    Args:
        before: members before the name.
    """
    return lambda name: f'{{{before}"name": {quoted(name)}, "{arguments_key}": '


def tagged(
    name: str,
    tags: Tags,
    *,
    is_list: bool = False,
    begin: Callable[[str], str] | None = None,
    gap: str = "",
    indent: str = "",
    between: str = "\n",
) -> ToolFormat:
    """A family of JSON calls in tags.

    Args:
        is_list: one pair of tags around a list of all calls; else a pair around each.
        begin: as in CallSyntax.
        gap: white space between tags and JSON.
        indent: white space before each call of a list, which then ends with a line of its own.
        between: white space between two pairs of tags.
    """
    opening, closing = tags.opening + gap, gap.rstrip(" ") + tags.closing
    syntax = CallSyntax(
        begin=begin or json_begin("arguments"),
        end="}",
        opening=f"{opening}[{indent}" if is_list else opening,
        separator=f",{indent or ' '}" if is_list else f"{closing}{between}{opening}",
        closing=("\n]" if indent else "]") + closing if is_list else closing,
        marks=tuple(mark for mark in (tags.opening, tags.closing) if mark),
        trigger=tags.opening,
    )
    return ToolFormat(name, functools.partial(TaggedJsonParser, tags=tags), syntax)


def deepseek(name: str, *, fenced: bool) -> ToolFormat:
    """The format of DeepSeek up to V3.1.

    Args:
        fenced: as DeepSeekParser has it.
    """
    family = DeepSeekParser
    head, tail = (f"function{family.NAME_END}", "\n```json\n") if fenced else ("", family.NAME_END)
    syntax = CallSyntax(
        begin=lambda function: head + function + tail,
        end="\n```" if fenced else "",
        opening=family.SECTION + family.CALL,
        separator=f"{family.CALL_END}\n{family.CALL}" if fenced else family.CALL_END + family.CALL,
        closing=family.CALL_END + family.SECTION_END,
        marks=(family.SECTION, family.SECTION_END, family.CALL, family.CALL_END, family.NAME_END),
        trigger=family.SECTION,
    )
    return ToolFormat(name, functools.partial(family, fenced=fenced), syntax)


def _kimi_arguments(rules: Rules, function: Function) -> str:
    return f"/[0-9]{{1,3}}/ {rules.text(KimiK2Parser.ARGUMENTS)} {json_arguments(rules, function)}"


def kimi_k2() -> ToolFormat:
    family = KimiK2Parser
    syntax = CallSyntax(
        begin=lambda function: f"functions.{function}:",
        opening=family.SECTION + family.CALL,
        separator=family.CALL_END + family.CALL,
        closing=family.CALL_END + family.SECTION_END,
        arguments=_kimi_arguments,
        marks=(family.SECTION, family.SECTION_END, family.CALL, family.CALL_END, family.ARGUMENTS),
        trigger=family.SECTION,
    )
    return ToolFormat("kimi_k2", family, syntax)


def internlm() -> ToolFormat:
    family = InternlmParser
    opening = f"{family.ACTION}{family.PLUGIN}\n"
    syntax = CallSyntax(
        begin=json_begin("parameters"),
        end="}",
        opening=opening,
        separator=f"{family.END}\n{opening}",
        closing=family.END,
        marks=(family.ACTION, family.PLUGIN, family.END),
        trigger=family.ACTION,
    )
    return ToolFormat("internlm", family, syntax)


def mistral(name: str, *, compact: bool) -> ToolFormat:
    """The format of Mistral.

    Args:
        compact: as tokenizers with `[ARGS]` write it.
    """
    mark = "[TOOL_CALLS]"
    syntax = CallSyntax(
        begin=(lambda function: f"{function}[ARGS]") if compact else json_begin("arguments"),
        end="" if compact else "}",
        opening=mark if compact else mark + " [",
        separator=mark if compact else ", ",
        closing="" if compact else "]",
        marks=(mark, "[ARGS]", "[CALL_ID]"),
        trigger=mark,
    )
    return ToolFormat(name, MistralParser, syntax, new_id=mistral_id)


def gpt_oss() -> ToolFormat:
    """The mark after a call ends the output: it is no part of the grammar."""
    family = GptOssParser
    marks = (family.START, family.CHANNEL, family.CONSTRAIN, family.MESSAGE, family.CALL, family.END)
    syntax = CallSyntax(
        begin=lambda function: f"{function} {family.CONSTRAIN}json{family.MESSAGE}",
        opening=f"{family.CHANNEL}commentary to=functions.",
        marks=marks,
        trigger=family.CHANNEL,
        lead=f"{family.START}assistant",
        answer=f"{family.CHANNEL}final{family.MESSAGE}",
    )
    return ToolFormat("gpt-oss", family, syntax)


def llama3() -> ToolFormat:
    syntax = CallSyntax(
        begin=json_begin("parameters"), end="}", separator="; ", marks=("<|python_tag|>",), trigger='{"name"'
    )
    return ToolFormat("llama3", Llama3Parser, syntax)


def apertus() -> ToolFormat:
    family = ApertusParser
    syntax = CallSyntax(
        begin=lambda function: f"{{{quoted(function)}: ",
        end="}",
        opening=f"{family.OPEN}[",
        separator=", ",
        closing=f"]{family.CLOSE}",
        marks=(family.OPEN, family.CLOSE),
        trigger=family.OPEN,
    )
    return ToolFormat("apertus2509", family, syntax)


def gigachat3() -> ToolFormat:
    """The prompt has opened a text, which a call ends; one call in an answer."""
    family = GigaChat3Parser
    syntax = CallSyntax(
        begin=json_begin("arguments"),
        end="}",
        opening=f"{family.TEXT_END}\n\n{family.ROLE}\n",
        marks=(family.TEXT_END, family.ROLE_END, family.CALL),
        trigger=family.TEXT_END,
    )
    return ToolFormat("gigachat3", family, syntax)


def inkling() -> ToolFormat:
    family = InklingParser
    syntax = CallSyntax(
        begin=lambda function: f'{function}{family.CALL}{{"name":{quoted(function)},"args":',
        end="}",
        opening=family.MESSAGE,
        separator=family.END + family.MESSAGE,
        closing=family.END,
        marks=(family.MESSAGE, family.TEXT, family.CALL, family.END),
        trigger=family.MESSAGE,
        answer=family.MESSAGE + family.TEXT,
    )
    return ToolFormat("inkling", family, syntax)


def plamo3() -> ToolFormat:
    family = Plamo3Parser
    opening = family.CALL + family.NAME
    syntax = CallSyntax(
        begin=lambda function: function + family.NAME_END + family.ARGUMENTS,
        end=family.ARGUMENTS_END,
        opening=family.SECTION + opening,
        separator=family.CALL_END + opening,
        closing=family.CALL_END + family.SECTION_END,
        marks=family.PIECES,
        trigger=family.SECTION,
    )
    return ToolFormat("plamo3", family, syntax)


def xlam() -> ToolFormat:
    return ToolFormat("xlam", GenericJsonParser, PLAIN_JSON.syntax)


PLAIN_JSON = ToolFormat(
    "json",
    PlainJsonParser,
    CallSyntax(begin=json_begin("arguments"), end="}", opening="[", separator=", ", closing="]"),
    reads_free_text=False,
)
GENERIC_JSON = ToolFormat("json", GenericJsonParser, PLAIN_JSON.syntax)  # of a prompt that has the tools as text
MISTRAL_COMPACT = mistral("mistral", compact=True)


def response_template(*, is_json: bool) -> ToolFormat:
    """The format that a response template reads.

    Args:
        is_json: the calls that it reads are JSON, and so are forced ones.
    """
    return ToolFormat("response_template", PlainJsonParser, PLAIN_JSON.syntax, is_template=True, can_force=is_json)
