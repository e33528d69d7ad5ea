"""TemplateSandbox: a Jinja environment for chat templates, in which rendering cannot take long or make much text.

Templates come with checkpoints, and what they work on comes from clients: a loop over pairs of messages is enough to
keep a thread busy for hours. jinja2's sandbox keeps templates from Python's insides, and no more. Here the time is
looked at in every turn of a loop, in every macro and for every item that a filter maps, and what may make text or
numbers much larger than what it gets is counted before it happens.
"""

import contextvars
import operator
import re
import time
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jinja2 import TemplateRuntimeError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import do_indent
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS: Final = 256 * 1024 * 1024  # that one rendering makes, everything in between included
_MAX_WIDTH: Final = 100_000  # of padding and indentation
_MAX_BITS: Final = 4096  # of a number
_UNDISTURBED: Final = 0.05  # seconds of a rendering, before it lets others run half of the time
_PAUSE: Final = 0.002  # seconds; without these, each turn of the event loop waits 5 ms for Python's lock
_POINTER: Final = 8  # characters that an item of a list counts for

_LARGE_NUMBER = re.compile(r"[0-9]{6}|\*|:[^{}]*\{")  # in a format: a width that is large, or given by a value
_WIDTH_METHODS: Final = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))
_WIDTH_FILTERS: Final = ("batch", "slice", "wordwrap")
_TEXT_FILTERS: Final = (  # make a text of whatever they get
    *("capitalize", "e", "escape", "forceescape", "lower", "pprint", "safe", "string", "striptags", "title", "trim"),
    *("truncate", "upper", "urlencode", "urlize", "wordcount", "xmlattr"),
)


class RenderLimitExceededError(TemplateRuntimeError):
    """The message says what there was too much of."""


class Meter:
    """What one rendering may still use.

    Args:
        seconds: of time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        begun = time.monotonic()
        self._deadline = begun + seconds
        self._next_pause = begun + _UNDISTURBED
        self._left = MAX_CHARACTERS

    def tick(self) -> None:
        """Lets other threads run now and then, in a rendering that lasts.

        Raises:
            RenderLimitExceededError: the time is up.
        """
        now = time.monotonic()
        if now > self._deadline:
            raise RenderLimitExceededError(f"it takes longer than {self._seconds:g} seconds")
        if now > self._next_pause:
            time.sleep(_PAUSE)
            self._next_pause = time.monotonic() + _PAUSE

    def add(self, size: int) -> None:
        """So many characters are made.

        Raises:
            RenderLimitExceededError: they are too many.
        """
        self._left -= size
        if self._left < 0:
            raise RenderLimitExceededError(f"it makes more than {MAX_CHARACTERS} characters, all steps together")


current_meter: contextvars.ContextVar[Meter] = contextvars.ContextVar("current_meter")  # while something is rendered


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


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Only to be used while `current_meter` is set."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=measure, **options)
        del self.globals["lipsum"]
        self.filters |= {name: _with_bounded_numbers(self.filters[name]) for name in _WIDTH_FILTERS}
        self.filters |= {name: _of_measured(self.filters[name]) for name in _TEXT_FILTERS}
        self.filters["center"] = _center
        self.filters["indent"] = _indent
        self.filters["replace"] = _replace
        self.filters["join"] = _counted_join(self.filters["join"])
        self.filters["format"] = lambda value, *args, **kwargs: self._format(str(value), kwargs or args)

    @staticmethod
    def tick() -> bool:
        current_meter.get().tick()
        return True

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Of what a template, a block or a macro writes."""
        add, kept = current_meter.get().add, []
        for piece in pieces:
            add(len(piece))
            kept.append(piece)
        return "".join(kept)

    @staticmethod
    def join_texts(parts: Sequence[object]) -> str:
        """Of the operator ~."""
        return "".join([str(measure(part)) for part in parts])

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
        meter.add(_size(result))
        return result

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return super().call_filter(*args, **kwargs)

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return super().call_test(*args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _LARGE_NUMBER.search(value.__self__):
            raise RenderLimitExceededError("it formats text with a width that is large or comes from a value")
        return wrapped

    def _format(self, text: str, values: Any) -> str:
        if _LARGE_NUMBER.search(text):
            raise RenderLimitExceededError("it formats text with a width that is large or comes from a value")
        result: str = operator.mod(text, measure(values))
        current_meter.get().add(len(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(self._with_ticks(source), *args, **kwargs)

    def _with_ticks(self, template: nodes.Template) -> nodes.Template:
        """The same template, in which every turn of a loop and every call of a macro begins with `tick`."""
        for loop in template.find_all(nodes.For):
            tick = nodes.EnvironmentAttribute("tick", lineno=loop.lineno)
            loop.body.insert(0, nodes.ExprStmt(tick, lineno=loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(tick, loop.test, lineno=loop.lineno)
        for macro in template.find_all(nodes.Macro):
            tick = nodes.EnvironmentAttribute("tick", lineno=macro.lineno)
            macro.body.insert(0, nodes.ExprStmt(tick, lineno=macro.lineno))
        template.set_environment(self)
        return template


def measure(value: Any) -> Any:
    """Gives the value back, having counted what it takes to write it as text.

    A list of few bytes may be long as a text, when it holds another one many times, which holds a third many times.

    Raises:
        RenderLimitExceededError: too much.
    """
    meter = current_meter.get()
    if isinstance(value, str):
        meter.add(len(value))
        return value
    rest = [value]
    while rest:
        item = rest.pop()
        meter.tick()
        meter.add(len(item) if isinstance(item, str) else _POINTER)
        if isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            rest += item
    return value


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    return _POINTER * len(value) if isinstance(value, list | tuple | dict) else 0


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    """Raises RenderLimitExceededError for numbers that are too large."""
    if operator == "+":
        return _size(left) + _size(right)
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                return _size(value) * max(times, 0)
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
        _check_numbers(args)
        if name == "expandtabs":
            meter.add(text.count("\t") * (args[0] if args and isinstance(args[0], int) else _POINTER))
    elif name == "replace" and len(args) >= 2:
        meter.add(_growth(text, args[0], args[1]))
    elif name == "join" and args:
        items = list(args[0])
        meter.add(sum(map(len, filter(_is_text, items))) + len(text) * len(items))
        return (items, *args[1:])
    elif name == "translate":
        raise RenderLimitExceededError("it calls translate, which may make text of any size")
    return args


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _growth(text: str, old: object, new: object) -> int:
    """Most characters that replacing adds to a text."""
    if not isinstance(old, str) or not isinstance(new, str) or len(new) <= len(old):
        return 0
    return text.count(old) * (len(new) - len(old))


def _check_numbers(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and value > _MAX_WIDTH for value in values):
        raise RenderLimitExceededError(f"it pads text to more than {_MAX_WIDTH} characters")


def _with_bounded_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        result = function(*args, **kwargs)
        current_meter.get().add(_size(result))
        return result

    vars(bounded).update(vars(function))  # how jinja2 passes it the environment
    return bounded


def _of_measured(function: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            measure(value)
        return function(*args, **kwargs)

    vars(measured).update(vars(function))
    return measured


def _counted_join(function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
        items = measure(list(value))
        current_meter.get().add(len(str(measure(d))) * len(items))
        return function(context, items, d, attribute)

    vars(counted).update(vars(function))
    return counted


def _center(value: object, width: int = 80) -> str:
    _check_numbers((width,))
    return str(measure(value)).center(width)


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_numbers((width,))
    text, prefix = str(measure(value)), " " * width if isinstance(width, int) else width
    current_meter.get().add(len(prefix) * (text.count("\n") + 2))
    return do_indent(text, prefix, first, blank)


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = str(measure(value)), str(measure(old)), str(measure(new))
    current_meter.get().add(_growth(text, old, new))
    return text.replace(old, new, -1 if count is None else count)
