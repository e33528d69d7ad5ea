"""Formats that write each argument by itself, or as Python does: parser, grammar and special tokens of each."""

import functools

from palladio.http.tool_calls.bare_values import BareMarks, BareParser
from palladio.http.tool_calls.grammars.grammar import CallSyntax
from palladio.http.tool_calls.grammars.lark import Rules
from palladio.http.tool_calls.grammars.value_grammars import (
    bare_arguments,
    element_arguments,
    json_named_arguments,
    python_arguments,
    tagged_arguments,
    typed_arguments,
)
from palladio.http.tool_calls.nested_elements import NestedParser
from palladio.http.tool_calls.pythonic import PythonicParser, PythonLinesParser, PythonTags
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.tagged_families import ElementParser, ElementTags, KeyedParser, KeyTags, MuseParser
from palladio.http.tool_calls.tool_format import ToolFormat


def functions_in_tags(name: str, opening: str, closing: str, *, gap: str) -> ToolFormat:
    """Qwen3-Coder's elements between two tags.

    Args:
        gap: white space on both sides of a value.
    """
    tags = ElementTags(
        before=(opening,),
        function="<function=",
        function_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        after=(closing,),
        has_attributes=False,
    )
    syntax = CallSyntax(
        begin=lambda function: f"{tags.function}{function}>\n",
        end=tags.function_end,
        opening=f"{opening}\n",
        separator=f"\n{closing}\n{opening}\n",
        closing=f"\n{closing}",
        arguments=tagged_arguments(lambda _: (tags.parameter, f">{gap}"), gap + tags.parameter_end, gap="\n"),
        marks=(opening, closing, tags.function_end, tags.parameter_end),
        trigger=opening,
    )
    return ToolFormat(name, functools.partial(ElementParser, tags=tags), syntax)


def keyed(name: str, tags: KeyTags, *, gap: str, inner: str | None = None, between: str = "\n") -> ToolFormat:
    """A family with marks around keys and values.

    Args:
        gap: white space after the name and after each value; within the marks around all calls, too.
        inner: between a key and its value; None: the same.
        between: two calls.
    """
    inner = gap if inner is None else inner
    syntax = CallSyntax(
        begin=lambda function: function + tags.name_end + gap,
        opening=f"{tags.before}{gap if tags.before else ''}{tags.call}",
        separator=tags.call_end + between + tags.call,
        closing=tags.call_end + (gap + tags.after if tags.after else ""),
        arguments=tagged_arguments(lambda _: (tags.key, tags.key_end + inner + tags.value), tags.value_end, gap=gap),
        marks=tags.marks,
        trigger=tags.before or tags.call,
    )
    return ToolFormat(name, functools.partial(KeyedParser, tags=tags), syntax)


def invoke(
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


def dsml(name: str, block: str, prefix: str) -> ToolFormat:
    """DeepSeek's elements, whose tags say which values are strings.

    Args:
        block: the tag around all calls.
    """
    return invoke(name, (f"<{block}>",), prefix, (f"</{block}>",), gap="\n", says_string=True)


def minicpm5() -> ToolFormat:
    """Nothing stands around the calls."""
    tags = ElementTags(
        before=(),
        function="<function",
        function_end="</function>",
        parameter="<param",
        parameter_end="</param>",
        after=(),
        has_attributes=True,
        has_cdata=True,
    )
    syntax = CallSyntax(
        begin=lambda function: f' name="{function}">',
        end=tags.function_end,
        opening=tags.function,
        separator=f"\n{tags.function}",
        arguments=tagged_arguments(lambda _: (f'{tags.parameter} name="', '">'), tags.parameter_end, gap=""),
        marks=(tags.function, tags.function_end, tags.parameter, tags.parameter_end),
        trigger=tags.function,
    )
    return ToolFormat("minicpm5", functools.partial(ElementParser, tags=tags), syntax)


def muse() -> ToolFormat:
    """Each call is a message of its own, behind the ones before."""
    family, tags = MuseParser, MuseParser.TAGS
    (opening,), (closing,) = tags.before, tags.after
    next_message = f"{family.START}assistant"
    to = f" {family.TO}"
    syntax = CallSyntax(
        begin=lambda function: f'{function}{family.MESSAGE}{opening}\n{tags.function} name="{function}">\n',
        end=f"{tags.function_end}\n{closing}",
        opening=to,
        separator=family.ENDS[0] + next_message + to,
        arguments=tagged_arguments(lambda _: (f'{tags.parameter} name="', '">'), tags.parameter_end, gap="\n"),
        marks=(family.START, family.MESSAGE, *family.ENDS),
        lead=next_message,
        answer=f"{to}user{family.MESSAGE}",
    )
    return ToolFormat("muse", family, syntax)


def kimi_k3() -> ToolFormat:
    """The text of an answer stands in marks of its own, which calls follow; the prompt may have opened them."""
    text, text_end, calls = "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|open|>tools<|sep|>"
    tags = ElementTags(
        before=(text, text_end, calls),
        function="<|open|>call",
        function_end="<|close|>call<|sep|>",
        parameter="<|open|>argument",
        parameter_end="<|close|>argument<|sep|>",
        after=("<|close|>tools<|sep|>", "<|close|>message<|sep|>"),
        has_attributes=True,
        tag_end="<|sep|>",
        attributes=("tool", "key"),
        is_exact=True,
    )
    written = typed_arguments(f'{tags.parameter} key="', '" type="', f'"{tags.tag_end}', tags.parameter_end)

    def arguments(rules: Rules, function: Function) -> str:
        head = rules.text(f'"{tags.tag_end}')
        return f"/[0-9]{{1,3}}/ {head} {written(rules, function)}"

    syntax = CallSyntax(
        begin=lambda function: f'{tags.function} tool="{function}" index="',
        end=tags.function_end,
        opening=text_end + calls,
        separator="",
        closing=tags.after[0],
        arguments=arguments,
        marks=("<|open|>", "<|close|>", "<|sep|>"),
        trigger=text_end,
        lead=text,
    )
    return ToolFormat("kimi_k3", functools.partial(ElementParser, tags=tags), syntax)


def minimax_m3() -> ToolFormat:
    family = NestedParser
    syntax = CallSyntax(
        begin=lambda function: f'{family.CALL}{function}">\n',
        end=f"{family.CALL_END}\n",
        opening=f"{family.OPEN}\n",
        separator="",
        closing=family.CLOSE,
        arguments=element_arguments(family.MARK, "\n"),
        marks=(family.MARK,),
        trigger=family.OPEN,
    )
    return ToolFormat("minimax-m3", family, syntax)


def bare(name: str, marks: BareMarks) -> ToolFormat:
    """Gemma's objects without quotes around keys."""
    syntax = CallSyntax(
        begin=lambda function: f"call:{function}{{",
        end="}",
        opening=marks.opening,
        separator=marks.closing + marks.opening,
        closing=marks.closing,
        arguments=bare_arguments(marks.quote),
        marks=(marks.opening, marks.closing, marks.quote),
        trigger=marks.opening,
    )
    return ToolFormat(name, functools.partial(BareParser, marks=marks), syntax)


def pythonic(name: str, tags: PythonTags, *, written: bool) -> ToolFormat:
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


def olmo3() -> ToolFormat:
    tags = PythonTags("<function_calls>", "</function_calls>")
    syntax = CallSyntax(
        begin=lambda function: f"{function}(",
        end=")",
        opening=tags.opening,
        separator="\n",
        closing=tags.closing,
        arguments=json_named_arguments,
        marks=(tags.opening, tags.closing),
        trigger=tags.opening,
    )
    return ToolFormat("olmo3", functools.partial(PythonLinesParser, tags=tags), syntax)


def hunyuan(name: str, suffix: str = "", *, has_separator: bool) -> ToolFormat:
    """Hunyuan V3 and V4, whose tokenizers may end the name of each mark with a word of their own.

    Args:
        has_separator: a mark ends a function's name, and each part has a line of its own, as V3 writes them.
    """
    opened = {part: f"<{part}{suffix}>" for part in ("tool_calls", "tool_call", "arg_key", "arg_value")}
    closed = {part: f"</{part}{suffix}>" for part in opened}
    tags = KeyTags(
        call=opened["tool_call"],
        call_end=closed["tool_call"],
        key=opened["arg_key"],
        key_end=closed["arg_key"],
        value=opened["arg_value"],
        value_end=closed["arg_value"],
        before=opened["tool_calls"],
        after=closed["tool_calls"],
        name_end=f"<tool_sep{suffix}>" if has_separator else "",
    )
    gap = "\n" if has_separator else ""
    return keyed(name, tags, gap=gap, between=gap)
