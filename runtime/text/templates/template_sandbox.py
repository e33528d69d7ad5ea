"""The sandbox that chat templates run in: what they may call, and how much time and memory they may take."""

import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from palladio.runtime.text.templates.template_filters import bounded_filters, check_slow_text, check_widths, growth
from palladio.runtime.text.templates.template_limits import check_depth
from palladio.runtime.text.templates.template_meter import (
    POINTER,
    Meter,
    RenderLimitExceededError,
    current_meter,
    measure,
    size_as_text,
    size_in_memory,
    ticked,
)

_MAX_BITS: Final = 4096  # of a number
_MANY: Final = 10_000  # items of a slice, from which on it counts

_LARGE_NUMBER = re.compile(r"[0-9]{6}|\*|:[^{}:]*\{")  # in a format: a width that is large, or given by a value
_NUMBER = re.compile(r"[0-9]+")
_WIDTH_METHODS: Final = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES: Final = "".join(filter(str.isspace, map(chr, range(0x3001))))


class _Code(CodeGenerator):
    """Writes the calls that the sandbox needs into the code of a template."""

    def visit_EnvironmentAttribute(self, node: nodes.EnvironmentAttribute, frame: Frame) -> None:  # noqa: N802 (jinja2's)
        self.write(f"environment.{node.name}()")  # no template has these nodes but by _with_ticks

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (jinja2's)
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 (jinja2's)
        is_slice = isinstance(node.arg, nodes.Slice)
        self.write("environment.count_slice(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Only to be used while `current_meter` is set."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=measure, **options)
        del self.globals["lipsum"]
        self.filters |= bounded_filters(self.filters)
        self.filters["format"] = lambda value, *args, **kwargs: self._format(str(value), kwargs or args)

    @staticmethod
    def tick() -> bool:
        current_meter.get().tick()
        return True

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join what a template, a block or a macro writes."""
        add, kept = current_meter.get().add, []
        for piece in pieces:
            add(len(piece))
            kept.append(piece)
        return "".join(kept)

    @staticmethod
    def join_texts(parts: Sequence[object]) -> str:
        """Apply the operator ~."""
        return "".join([str(measure(part)) for part in parts])

    @staticmethod
    def count_slice(part: Any) -> Any:
        """Count a slice of a text or list; short lists are free, as templates often use `messages[1:]`."""
        if isinstance(part, str) or (isinstance(part, list | tuple) and len(part) > _MANY):
            current_meter.get().add(size_in_memory(part))
        return part

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # most of what templates do
            current_meter.get().add(len(left) + len(right))
            return left + right
        if operator == "%" and isinstance(left, str):
            return self._format(left, right)
        current_meter.get().add(_size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as jinja2 has it)
        meter = current_meter.get()
        meter.tick()
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str):
            args = _check_method(__obj.__self__, __obj.__name__, args, meter)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.add(size_in_memory(result))
        return result

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return super().call_filter(*args, **kwargs)

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return super().call_test(*args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text, formatted = value.__self__, wrapped

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_slow_text(len(text))
            _count_widths(text)
            current_meter.get().add(text.count("{") * size_as_text((args, kwargs)))
            return formatted(*args, **kwargs)

        return bounded

    def _format(self, text: str, values: Any) -> str:
        _count_widths(text)
        size = size_as_text(values)
        if isinstance(values, dict):  # each may be named several times
            current_meter.get().add(text.count("%(") * size)
        result: str = operator.mod(text, values)
        current_meter.get().add(len(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(self._with_ticks(source), *args, **kwargs)

    def _with_ticks(self, template: nodes.Template) -> nodes.Template:
        """The same template, in which every turn of a loop and every call of a macro begins with `tick`."""
        check_depth(template)
        for loop in template.find_all(nodes.For):
            tick = nodes.EnvironmentAttribute("tick", lineno=loop.lineno)
            loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(tick, loop.test, lineno=loop.lineno)
        calls: Iterator[nodes.Call | nodes.Filter | nodes.Test]
        calls = template.find_all((nodes.Call, nodes.Filter, nodes.Test))
        for call in calls:
            if call.dyn_args is not None:  # *values: made a tuple before the call
                call.dyn_args = nodes.Filter(call.dyn_args, "list", [], [], None, None, lineno=call.lineno)
        for macro in template.find_all(nodes.Macro):
            tick = nodes.EnvironmentAttribute("tick", lineno=macro.lineno)
            macro.body.insert(0, nodes.ExprStmt(tick, lineno=macro.lineno))
        template.set_environment(self)
        return template


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    """Raises RenderLimitExceededError for numbers that are too large."""
    if operator == "+":
        return size_in_memory(left) + size_in_memory(right)
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                return size_in_memory(value) * max(times, 0)
    if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
        bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
        if bits > _MAX_BITS:
            raise RenderLimitExceededError(f"it computes numbers of more than {_MAX_BITS} bits")
    return 0


def _check_method(text: str, name: str, args: tuple[Any, ...], meter: Meter) -> tuple[Any, ...]:
    """The arguments to call a method of `text` with.

    Raises:
        RenderLimitExceededError: the result would be too large.
    """
    if name in _WIDTH_METHODS:
        check_widths(args)
        if name == "expandtabs":
            meter.add(text.count("\t") * (args[0] if args and isinstance(args[0], int) else POINTER))
    elif name == "replace" and len(args) >= 2:
        meter.add(growth(text, args[0], args[1]))
    elif name == "join" and args:
        items = list(ticked(args[0]))
        meter.add(sum(len(item) for item in items if isinstance(item, str)) + len(text) * len(items))
        return (items, *args[1:])
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args and name != "splitlines" else None
        meter.add(2 * POINTER * _num_parts(text, _LINE_ENDS if name == "splitlines" else separator or _SPACES))
    elif name == "translate":
        raise RenderLimitExceededError("it calls translate, which may make text of any size")
    return args


def _num_parts(text: str, separator: object) -> int:
    """At most. `_SPACES` and `_LINE_ENDS` are each a set of characters, other separators are what they are."""
    if not isinstance(separator, str):
        return 0  # which is an error
    separators = separator if separator in (_SPACES, _LINE_ENDS) else (separator,)
    return 1 + sum(map(text.count, separators))


def _count_widths(text: str) -> None:
    """Counts what a format may pad.

    Raises:
        RenderLimitExceededError: the size is too large or unknown.
    """
    if _LARGE_NUMBER.search(text):
        raise RenderLimitExceededError("it formats text with a width that is large or comes from a value")
    meter = current_meter.get()
    for number in _NUMBER.finditer(text):
        meter.tick()
        meter.add(int(number[0]))
