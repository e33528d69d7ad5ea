"""From words of a command line to values of a config's fields."""

import types
import typing
from collections.abc import Sequence
from typing import Any

from palladio.runtime.interface.config.field_checks import check_choice
from palladio.runtime.interface.errors import ConfigError

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def typed_value(typed: str, hint: Any, words: Sequence[str]) -> Any:
    """Convert the words after a flag to what its field holds.

    Args:
        typed: the flag, as an error is to name it.
        hint: the field's annotation: bool, int, float, str, a Literal of strings or integers, a tuple of
            one of these, or a union.

    Raises:
        ConfigError: there is no word or there are too many, or a word has the wrong type. The message names the flag,
            the value and what is allowed.
    """
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    kinds = [option for option in options if option is not types.NoneType]
    if kinds == [bool]:
        return _switch(typed, words)
    if not words:
        raise ConfigError(f"{typed} needs a value")
    several = next((kind for kind in kinds if typing.get_origin(kind) is tuple), None)
    if several is not None and (len(words) > 1 or len(kinds) == 1):
        return tuple(_scalar(typed, typing.get_args(several)[0], word) for word in words)
    if len(words) > 1:
        raise ConfigError(f"{typed} takes one value, got {' '.join(words)!r}")
    if words[0] == "None" and len(kinds) < len(options) and str not in kinds:
        return None
    return _scalar(typed, kinds[0], words[0])


def _switch(typed: str, words: Sequence[str]) -> bool:
    if not words:
        return True
    word = words[0].lower()
    if len(words) > 1 or word not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{typed} takes no value, got {' '.join(words)!r}; --no-… turns a switch off")
    return word in _TRUE


def _scalar(typed: str, kind: Any, word: str) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        check_choice(typed, kind, word)
        return next(option for option in typing.get_args(kind) if str(option) == word)
    if kind is str:
        return word
    try:
        return int(word) if kind is int else float(word)
    except ValueError:
        noun = "an integer" if kind is int else "a number"
        raise ConfigError(f"{typed} takes {noun}, got {word!r}") from None
