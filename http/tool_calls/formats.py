"""The formats that model families write tool calls in: parser, grammar and special tokens of each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from palladio.http.tool_calls.grammars.grammar import CallSyntax, json_arguments
from palladio.http.tool_calls.grammars.lark import Rules, quoted
from palladio.http.tool_calls.grammars.value_grammars import python_arguments, tagged_arguments
from palladio.http.tool_calls.json_families import (
    DeepSeekParser,
    GptOssParser,
    InternlmParser,
    KimiK2Parser,
    Llama3Parser,
    MistralParser,
    PlainJsonParser,
    TaggedJsonParser,
    Tags,
)
from palladio.http.tool_calls.pythonic import PythonicParser, PythonTags
from palladio.http.tool_calls.reading.base import Function, Functions, ToolCallParser
from palladio.http.tool_calls.reading.output import CallOutput, NewId, mistral_id, openai_id
from palladio.http.tool_calls.tagged_families import ElementParser, ElementTags, Glm45Parser


@dataclasses.dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model family writes tool calls.

    Attributes:
        name: of its parser.
        parser: makes the parser of one sample.
        syntax: for grammars.
        reads_free_text: calls can be told from other text; else they are read only where a grammar forces one.
        new_id: makes the id of a call.
    """

    name: str
    parser: Callable[[CallOutput], ToolCallParser]
    syntax: CallSyntax
    reads_free_text: bool = True
    new_id: NewId = openai_id

    @property
    def special(self) -> tuple[str, ...]:
        """What the parser has to see in the text where the tokenizer has it as a special token."""
        return self.syntax.marks

    def new_parser(self, functions: Functions, *, parallel: bool = True) -> ToolCallParser:
        """
        Args:
            functions: that may be called.
            parallel: false: calls after the first are dropped.
        """
        return self.parser(CallOutput(functions, parallel=parallel, new_id=self.new_id))


def _json_begin(arguments_key: str, before: str = "") -> Callable[[str], str]:
    return lambda name: f'{{{before}"name": {quoted(name)}, "{arguments_key}": '


def _tagged(
    name: str,
    tags: Tags,
    *,
    is_list: bool = False,
    begin: Callable[[str], str] | None = None,
    gap: str = "",
    indent: str = "",
) -> ToolFormat:
    """A family of JSON calls in tags.

    Args:
        is_list: one pair of tags around a list of all calls; else a pair around each.
        begin: as in CallSyntax.
        gap: white space between tags and JSON.
        indent: white space before each call of a list, which then ends with a line of its own.
    """
    opening, closing = tags.opening + gap, gap + tags.closing
    syntax = CallSyntax(
        begin=begin or _json_begin("arguments"),
        end="}",
        opening=f"{opening}[{indent}" if is_list else opening,
        separator=f",{indent or ' '}" if is_list else f"{closing}\n{opening}",
        closing=("\n]" if indent else "]") + closing if is_list else closing,
        marks=tuple(mark for mark in (tags.opening, tags.closing) if mark),
        trigger=tags.opening,
    )
    return ToolFormat(name, functools.partial(TaggedJsonParser, tags=tags), syntax)


def _deepseek(name: str, *, fenced: bool) -> ToolFormat:
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


def _kimi() -> ToolFormat:
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


def _internlm() -> ToolFormat:
    family = InternlmParser
    opening = f"{family.ACTION}{family.PLUGIN}\n"
    syntax = CallSyntax(
        begin=_json_begin("parameters"),
        end="}",
        opening=opening,
        separator=f"{family.END}\n{opening}",
        closing=family.END,
        marks=(family.ACTION, family.PLUGIN, family.END),
        trigger=family.ACTION,
    )
    return ToolFormat("internlm", family, syntax)


def _mistral(name: str, *, compact: bool) -> ToolFormat:
    mark = "[TOOL_CALLS]"
    syntax = CallSyntax(
        begin=(lambda function: f"{function}[ARGS]") if compact else _json_begin("arguments"),
        end="" if compact else "}",
        opening=mark if compact else mark + " [",
        separator=mark if compact else ", ",
        closing="" if compact else "]",
        marks=(mark, "[ARGS]", "[CALL_ID]"),
        trigger=mark,
    )
    return ToolFormat(name, MistralParser, syntax, new_id=mistral_id)


def _gpt_oss() -> ToolFormat:
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


def _qwen3_coder() -> ToolFormat:
    tags = ElementTags(
        before=("<tool_call>",),
        function="<function=",
        function_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        after=("</tool_call>",),
        has_attributes=False,
    )
    (opening,), (closing,) = tags.before, tags.after
    syntax = CallSyntax(
        begin=lambda function: f"{tags.function}{function}>\n",
        end=tags.function_end,
        opening=f"{opening}\n",
        separator=f"\n{closing}\n{opening}\n",
        closing=f"\n{closing}",
        arguments=tagged_arguments(lambda _: (tags.parameter, ">\n"), f"\n{tags.parameter_end}", gap="\n"),
        marks=(opening, closing, tags.function_end, tags.parameter_end),
        trigger=opening,
    )
    return ToolFormat("qwen3_coder", functools.partial(ElementParser, tags=tags), syntax)


def _glm(name: str, *, gap: str) -> ToolFormat:
    family = Glm45Parser
    marks = (family.OPEN, family.CLOSE, family.KEY, family.KEY_END, family.VALUE, family.VALUE_END)
    syntax = CallSyntax(
        begin=lambda function: function + gap,
        opening=family.OPEN,
        separator=f"{family.CLOSE}\n{family.OPEN}",
        closing=family.CLOSE,
        arguments=tagged_arguments(
            lambda _: (family.KEY, family.KEY_END + gap + family.VALUE), family.VALUE_END, gap=gap
        ),
        marks=marks,
        trigger=family.OPEN,
    )
    return ToolFormat(name, family, syntax)


def _invoke(
    name: str, before: tuple[str, ...], prefix: str, after: tuple[str, ...], *, gap: str, says_string: bool = False
) -> ToolFormat:
    """A family with `<invoke>`.

    Args:
        before, after: see ElementTags.
        prefix: of the tags invoke and parameter.
        gap: white space between tags.
        says_string: the parameter tag has an attribute that says whether the value is a string.
    """
    tags = ElementTags(
        before=before,
        function=f"<{prefix}invoke",
        function_end=f"</{prefix}invoke>",
        parameter=f"<{prefix}parameter",
        parameter_end=f"</{prefix}parameter>",
        after=after,
        has_attributes=True,
    )
    attribute = ' string="{}"' if says_string else ""
    syntax = CallSyntax(
        begin=lambda function: f'{tags.function} name="{function}">{gap}',
        end=f"{tags.function_end}{gap}",
        opening=gap.join(before) + gap,
        separator=gap.join((*after[:-1], *before[1:])),
        closing=gap.join(after),
        arguments=tagged_arguments(
            lambda is_string: (f'{tags.parameter} name="', f'"{attribute.format(is_string)}>'),
            tags.parameter_end,
            gap=gap,
        ),
        marks=(*before, *after),
        trigger=before[0],
    )
    return ToolFormat(name, functools.partial(ElementParser, tags=tags), syntax)


def _pythonic(name: str, tags: PythonTags, *, written: bool) -> ToolFormat:
    """The format of calls written as Python.

    Args:
        written: whether the model always writes the tags.
    """
    syntax = CallSyntax(
        begin=lambda function: f"{function}(",
        end=")",
        opening=f"{tags.opening}[" if written else "[",
        separator=", ",
        closing=f"]{tags.closing}" if written else "]",
        arguments=python_arguments,
        marks=(tags.opening, tags.closing),
        trigger=tags.opening if written else None,
    )
    return ToolFormat(name, functools.partial(PythonicParser, tags=tags), syntax)


def _llama3() -> ToolFormat:
    syntax = CallSyntax(
        begin=_json_begin("parameters"), end="}", separator="; ", marks=("<|python_tag|>",), trigger='{"name"'
    )
    return ToolFormat("llama3", Llama3Parser, syntax)


PLAIN_JSON = ToolFormat(
    "json",
    PlainJsonParser,
    CallSyntax(begin=_json_begin("arguments"), end="}", opening="[", separator=", ", closing="]"),
    reads_free_text=False,
)

MISTRAL_COMPACT = _mistral("mistral", compact=True)

_HERMES_TAGS = Tags("<tool_call>", "</tool_call>")

FORMATS: Mapping[str, ToolFormat] = {
    found.name: found
    for found in (
        _tagged("qwen25", _HERMES_TAGS, gap="\n"),
        _tagged("hermes", _HERMES_TAGS, gap="\n"),
        _llama3(),
        _mistral("mistral", compact=False),
        _pythonic("pythonic", PythonTags(), written=False),
        _deepseek("deepseekv3", fenced=True),
        _deepseek("deepseekv31", fenced=False),
        _kimi(),
        _internlm(),
        _gpt_oss(),
        _glm("glm45", gap="\n"),
        _glm("glm47", gap=""),
        _qwen3_coder(),
        _invoke("minimax-m2", ("<minimax:tool_call>",), "", ("</minimax:tool_call>",), gap="\n"),
        _invoke(
            "step3",
            ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function<｜tool_sep｜>"),
            "steptml:",
            ("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            gap="",
        ),
        _invoke(
            "deepseekv32",
            ("<｜DSML｜function_calls>",),
            "｜DSML｜",
            ("</｜DSML｜function_calls>",),
            gap="\n",
            says_string=True,
        ),
        _pythonic("lfm2", PythonTags("<|tool_call_start|>", "<|tool_call_end|>"), written=True),
        _tagged("hunyuan", Tags("<tool_calls>", "</tool_calls>"), is_list=True),
        _tagged("granite", Tags("<|tool_call|>", ""), is_list=True),
        _tagged("phi4_mini_json", Tags("functools", ""), is_list=True),
        _tagged(
            "cohere_command4",
            Tags("<|START_ACTION|>", "<|END_ACTION|>", answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
            is_list=True,
            indent="\n    ",
            begin=lambda name: f'{{"tool_call_id": "0", "tool_name": {quoted(name)}, "parameters": ',
        ),
        PLAIN_JSON,
    )
}
