"""jinja2's filters as a TemplateSandbox has them: what they do with long texts and lists is counted as they do it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from jinja2 import Environment, pass_environment
from jinja2.filters import do_indent, make_attrgetter

from palladio.runtime.text.templates.template_meter import (
    RenderLimitExceededError,
    current_meter,
    measure,
    size_as_text,
    size_in_memory,
    ticked,
)

MAX_WIDTH: Final = 100_000  # of padding and indentation
MAX_SLOW_TEXT: Final = 100_000  # characters for what works on them one by one, or word by word
MAX_SORTED: Final = 100_000  # items: sorting does not look at the time

_WIDTH_FILTERS: Final = ("batch", "slice", "wordwrap")
_ITEM_FILTERS: Final = ("batch", "first", "list", "map", "reject", "rejectattr", "select", "selectattr", "slice")
_KEY_FILTERS: Final = ("max", "min", "unique")  # make keys of items, in lower case
_SORTING_FILTERS: Final = ("groupby", "sort")
_TEXT_FILTERS: Final = (  # make a text of whatever they get
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "trim", "truncate", "upper"),
)
_SLOW_TEXT_FILTERS: Final = (
    *("pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"),
)


def bounded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Those of jinja2's filters that may take long or make much, in the forms that do not.

    Args:
        filters: jinja2's own.
    """
    bounded = dict(filters)
    bounded |= {name: _on_value(bounded[name], ticked) for name in _ITEM_FILTERS}
    bounded |= {name: _on_value(bounded[name], _measured_items) for name in _KEY_FILTERS}
    bounded |= {name: _on_value(bounded[name], _few_items) for name in _SORTING_FILTERS}
    bounded |= {name: _guarded(bounded[name], _measure_each, counts_result=False) for name in _TEXT_FILTERS}
    bounded |= {name: _guarded(bounded[name], _check_short) for name in _SLOW_TEXT_FILTERS}
    bounded |= {name: _guarded(bounded[name], check_widths) for name in _WIDTH_FILTERS}
    bounded["center"] = _center
    bounded["indent"] = _indent
    bounded["replace"] = _replace
    bounded["dictsort"] = _on_value(bounded["dictsort"], _few_keys)
    bounded["reverse"] = _on_value(bounded["reverse"], _counted)
    bounded["sum"] = _sum
    bounded["join"] = _counted_join(bounded["join"])
    return {name: function for name, function in bounded.items() if function is not filters[name]}


def check_widths(values: Iterable[object]) -> None:
    """Raises RenderLimitExceededError for widths that are too large."""
    if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
        raise RenderLimitExceededError(f"it pads text to more than {MAX_WIDTH} characters")


def check_slow_text(size: int) -> None:
    """Raises RenderLimitExceededError for a text that is too long for what takes its time with it."""
    if size > MAX_SLOW_TEXT:
        raise RenderLimitExceededError(f"it formats or wraps a text of more than {MAX_SLOW_TEXT} characters")


def growth(text: str, old: object, new: object) -> int:
    """Most characters that replacing adds to a text."""
    if not isinstance(old, str) or not isinstance(new, str) or len(new) <= len(old):
        return 0
    return text.count(old) * (len(new) - len(old))


def _on_value(function: Callable[..., Any], prepare: Callable[[Any], Any]) -> Callable[..., Any]:
    """The filter, which gets what `prepare` makes of its value."""
    place = 1 if "jinja_pass_arg" in vars(function) else 0  # first comes the environment, or a context

    def prepared(*args: Any, **kwargs: Any) -> Any:
        return function(*args[:place], prepare(args[place]), *args[place + 1 :], **kwargs)

    vars(prepared).update(vars(function))  # how jinja2 passes it the environment
    return prepared


def _measured_items(value: Iterable[Any]) -> Iterator[Any]:
    return map(measure, ticked(value))


def _few_items(value: Iterable[Any]) -> list[Any]:
    items = []
    for item in ticked(value):
        items.append(item)
        _check_sorted(len(items))
    return list(measure(items))


def _few_keys(value: Any) -> Any:
    _check_sorted(len(value) if isinstance(value, dict) else 0)
    return measure(value)


def _check_sorted(size: int) -> None:
    if size > MAX_SORTED:
        raise RenderLimitExceededError(f"it sorts more than {MAX_SORTED} items")


def _counted(value: Any) -> Any:
    """Iterators are made lists here, as `reverse` would do it."""
    current_meter.get().add(size_in_memory(value))
    return list(ticked(value)) if isinstance(value, Iterator) else value


def _guarded(
    function: Callable[..., Any], check: Callable[[Iterable[Any]], None], *, counts_result: bool = True
) -> Callable[..., Any]:
    """The filter, all of whose arguments are checked first, and whose result is counted."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        check((*args, *kwargs.values()))
        result = function(*args, **kwargs)
        if counts_result:
            current_meter.get().add(size_in_memory(result))
        return result

    vars(guarded).update(vars(function))
    return guarded


def _measure_each(values: Iterable[Any]) -> None:
    for value in values:
        measure(value)


def _check_short(values: Iterable[Any]) -> None:
    check_slow_text(sum(map(size_as_text, values)))


def _counted_join(function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
        items = measure(list(ticked(value)))
        current_meter.get().add(len(str(measure(d))) * len(items))
        return function(context, items, d, attribute)

    vars(counted).update(vars(function))
    return counted


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """Sum numbers, or lists with start=[]: each sum is a new list."""
    of = None if attribute is None else make_attrgetter(environment, attribute)
    add, total = current_meter.get().add, start
    for item in ticked(iterable):
        value = item if of is None else of(item)
        add(size_in_memory(total) + size_in_memory(value))
        total = total + value
    return total


def _center(value: object, width: int = 80) -> str:
    check_widths((width,))
    return str(measure(value)).center(width)


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check_widths((width,))
    text, prefix = str(measure(value)), " " * width if isinstance(width, int) else width
    current_meter.get().add(len(prefix) * (text.count("\n") + 2))
    return do_indent(text, prefix, first, blank)


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = str(measure(value)), str(measure(old)), str(measure(new))
    current_meter.get().add(growth(text, old, new))
    return text.replace(old, new, -1 if count is None else count)
