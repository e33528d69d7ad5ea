"""The formats that model families write tool calls in: parser, grammar and special tokens of each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from palladio.http.tool_calls import deepseek, glm45, gpt_oss, kimi_k2, qwen3_coder
from palladio.http.tool_calls.base import ToolCallParser
from palladio.http.tool_calls.functions import Function, Functions
from palladio.http.tool_calls.grammar import CallSyntax, json_arguments
from palladio.http.tool_calls.invoke import InvokeParser, InvokeTags
from palladio.http.tool_calls.lark import Rules, quoted
from palladio.http.tool_calls.llama3 import Llama3Parser
from palladio.http.tool_calls.mistral import MistralParser
from palladio.http.tool_calls.output import CallOutput, NewId, mistral_id, openai_id
from palladio.http.tool_calls.plain_json import PlainJsonParser
from palladio.http.tool_calls.pythonic import PythonicParser, PythonTags
from palladio.http.tool_calls.tagged_json import TaggedJsonParser, Tags
from palladio.http.tool_calls.value_grammars import python_arguments, tagged_arguments


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
    head, tail = (f"function{deepseek.NAME_END}", "\n```json\n") if fenced else ("", deepseek.NAME_END)
    syntax = CallSyntax(
        begin=lambda function: head + function + tail,
        end="\n```" if fenced else "",
        opening=deepseek.SECTION + deepseek.CALL,
        separator=f"{deepseek.CALL_END}\n{deepseek.CALL}" if fenced else deepseek.CALL_END + deepseek.CALL,
        closing=deepseek.CALL_END + deepseek.SECTION_END,
        marks=(deepseek.SECTION, deepseek.SECTION_END, deepseek.CALL, deepseek.CALL_END, deepseek.NAME_END),
        trigger=deepseek.SECTION,
    )
    return ToolFormat(name, functools.partial(deepseek.DeepSeekParser, fenced=fenced), syntax)


def _kimi_arguments(rules: Rules, function: Function) -> str:
    return f"/[0-9]{{1,3}}/ {rules.text(kimi_k2.ARGUMENTS)} {json_arguments(rules, function)}"


def _kimi() -> ToolFormat:
    syntax = CallSyntax(
        begin=lambda function: f"functions.{function}:",
        opening=kimi_k2.SECTION + kimi_k2.CALL,
        separator=kimi_k2.CALL_END + kimi_k2.CALL,
        closing=kimi_k2.CALL_END + kimi_k2.SECTION_END,
        arguments=_kimi_arguments,
        marks=(kimi_k2.SECTION, kimi_k2.SECTION_END, kimi_k2.CALL, kimi_k2.CALL_END, kimi_k2.ARGUMENTS),
        trigger=kimi_k2.SECTION,
    )
    return ToolFormat("kimi_k2", kimi_k2.KimiK2Parser, syntax)


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
    marks = (gpt_oss.START, gpt_oss.CHANNEL, gpt_oss.CONSTRAIN, gpt_oss.MESSAGE, gpt_oss.CALL, gpt_oss.END)
    syntax = CallSyntax(
        begin=lambda function: f"{function} {gpt_oss.CONSTRAIN}json{gpt_oss.MESSAGE}",
        opening=f"{gpt_oss.CHANNEL}commentary to=functions.",
        marks=marks,
        trigger=gpt_oss.CHANNEL,
        lead=f"{gpt_oss.START}assistant",
        answer=f"{gpt_oss.CHANNEL}final{gpt_oss.MESSAGE}",
    )
    return ToolFormat("gpt-oss", gpt_oss.GptOssParser, syntax)


def _qwen3_coder() -> ToolFormat:
    syntax = CallSyntax(
        begin=lambda function: f"{qwen3_coder.FUNCTION}{function}>\n",
        end=qwen3_coder.FUNCTION_END,
        opening=f"{qwen3_coder.OPEN}\n",
        separator=f"\n{qwen3_coder.CLOSE}\n{qwen3_coder.OPEN}\n",
        closing=f"\n{qwen3_coder.CLOSE}",
        arguments=tagged_arguments(
            lambda _: (qwen3_coder.PARAMETER, ">\n"), f"\n{qwen3_coder.PARAMETER_END}", gap="\n"
        ),
        marks=(qwen3_coder.OPEN, qwen3_coder.CLOSE, qwen3_coder.FUNCTION_END, qwen3_coder.PARAMETER_END),
        trigger=qwen3_coder.OPEN,
    )
    return ToolFormat("qwen3_coder", qwen3_coder.Qwen3CoderParser, syntax)


def _glm(name: str, *, gap: str) -> ToolFormat:
    marks = (glm45.OPEN, glm45.CLOSE, glm45.KEY, glm45.KEY_END, glm45.VALUE, glm45.VALUE_END)
    syntax = CallSyntax(
        begin=lambda function: function + gap,
        opening=glm45.OPEN,
        separator=f"{glm45.CLOSE}\n{glm45.OPEN}",
        closing=glm45.CLOSE,
        arguments=tagged_arguments(lambda _: (glm45.KEY, glm45.KEY_END + gap + glm45.VALUE), glm45.VALUE_END, gap=gap),
        marks=marks,
        trigger=glm45.OPEN,
    )
    return ToolFormat(name, glm45.Glm45Parser, syntax)


def _invoke(name: str, tags: InvokeTags, *, gap: str, says_string: bool = False) -> ToolFormat:
    """
    Args:
        gap: white space between tags.
        says_string: the parameter tag has an attribute that says whether the value is a string.
    """
    prefix, opening, closing = tags.prefix, gap.join(tags.before), gap.join(tags.after)
    attribute = 'string="{}"' if says_string else ""
    syntax = CallSyntax(
        begin=lambda function: f'<{prefix}invoke name="{function}">{gap}',
        end=f"</{prefix}invoke>{gap}",
        opening=opening + gap,
        separator=gap.join((*tags.after[:-1], *tags.before[1:])),
        closing=closing,
        arguments=tagged_arguments(
            lambda is_string: (
                f'<{prefix}parameter name="',
                f'" {attribute.format(is_string)}>' if says_string else '">',
            ),
            f"</{prefix}parameter>",
            gap=gap,
        ),
        marks=(*tags.before, *tags.after),
        trigger=tags.before[0],
    )
    return ToolFormat(name, functools.partial(InvokeParser, tags=tags), syntax)


def _pythonic(name: str, tags: PythonTags, *, written: bool) -> ToolFormat:
    """Args: written: the model always writes the tags."""
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
        _gpt_oss(),
        _glm("glm45", gap="\n"),
        _glm("glm47", gap=""),
        _qwen3_coder(),
        _invoke("minimax-m2", InvokeTags(("<minimax:tool_call>",), "", ("</minimax:tool_call>",)), gap="\n"),
        _invoke(
            "step3",
            InvokeTags(
                ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function<｜tool_sep｜>"),
                "steptml:",
                ("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            ),
            gap="",
        ),
        _invoke(
            "deepseekv32",
            InvokeTags(("<｜DSML｜function_calls>",), "｜DSML｜", ("</｜DSML｜function_calls>",)),
            gap="\n",
            says_string=True,
        ),
        _pythonic("lfm2", PythonTags("<|tool_call_start|>", "<|tool_call_end|>"), written=True),
        _tagged("hunyuan", Tags("<tool_calls>", "</tool_calls>"), is_list=True),
        _tagged("granite", Tags("<|tool_call|>", ""), is_list=True),
        _tagged("phi4_mini_json", Tags("functools", ""), is_list=True),
        _tagged(
            "cohere_command4",
            Tags("<|START_ACTION|>", "<|END_ACTION|>"),
            is_list=True,
            indent="\n    ",
            begin=lambda name: f'{{"tool_call_id": "0", "tool_name": {quoted(name)}, "parameters": ',
        ),
        PLAIN_JSON,
    )
}
