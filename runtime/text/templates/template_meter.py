"""Meter: what one rendering of a chat template may still use, of time and of text."""

import contextvars
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, Final

from jinja2 import TemplateRuntimeError

MAX_CHARACTERS: Final = 256 * 1024 * 1024  # that one rendering makes, everything in between included
_CHARACTERS_A_SECOND: Final = 128 * 1024 * 1024  # in short renderings: no call of Python's on a text looks at the time
POINTER: Final = 8  # characters that an item of a list counts for
_CHARACTER: Final = 64  # and a character that becomes a text of its own
_UNDISTURBED: Final = 0.05  # seconds of a rendering, before it lets others run half of the time
_PAUSE: Final = 0.002  # seconds; without these, each turn of the event loop waits 5 ms for Python's lock


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
        self._limit = self._left = min(MAX_CHARACTERS, int(seconds * _CHARACTERS_A_SECOND))

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
        """Charge for characters that are made.

        Raises:
            RenderLimitExceededError: they are too many.
        """
        self._left -= size
        if self._left < 0:
            raise RenderLimitExceededError(f"it makes more than {self._limit} characters, all steps together")


current_meter: contextvars.ContextVar[Meter] = contextvars.ContextVar("current_meter")  # while something is rendered


def measure(value: Any) -> Any:
    """Gives the value back, having counted what it takes to write it as text.

    Raises:
        RenderLimitExceededError: too much.
    """
    size_as_text(value)
    return value


def size_as_text(value: object) -> int:
    """How many characters it takes to write a value as text, about. They are counted.

    A list of few bytes may be long as a text, when it holds another one many times, which holds a third many times.

    Raises:
        RenderLimitExceededError: too much.
    """
    meter = current_meter.get()
    if isinstance(value, str):
        meter.add(len(value))
        return len(value)
    rest, total = [value], 0
    while rest:
        item = rest.pop()
        meter.tick()
        size = len(item) if isinstance(item, str) else POINTER
        meter.add(size)
        total += size
        if isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
            rest += item
    return total


def size_in_memory(value: object) -> int:
    """In characters: of a text, or of a list without what it holds."""
    if isinstance(value, str):
        return len(value)
    return POINTER * len(value) if isinstance(value, list | tuple | dict) else 0


def ticked(value: Iterable[Any]) -> Iterator[Any]:
    """The items of a value, which are counted and for each of which the time is looked at.

    Raises:
        TypeError: the value has no items.
    """
    items = iter(value)
    meter = current_meter.get()
    return _ticked(items, meter, _CHARACTER if isinstance(value, str) else POINTER)


def _ticked(items: Iterator[Any], meter: Meter, size: int) -> Iterator[Any]:
    for item in items:
        meter.tick()
        meter.add(size)
        yield item
