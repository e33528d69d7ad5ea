"""Whether a config's fields hold what their annotations say: callers from Python are not type-checked."""

import types
import typing
from typing import Any

from palladio.runtime.interface.errors import ConfigError


def check_fields(config: object) -> None:
    """Checks each field of a dataclass: str, int, float, bool, a Literal of strings, a tuple, a class, or a union.

    Raises:
        ConfigError: names the flag, what it may be, and the value.
    """
    for name, hint in typing.get_type_hints(type(config)).items():
        value = vars(config)[name]
        if not _fits(value, hint):
            raise ConfigError(f"--{name.replace('_', '-')} must be {_describe(hint)}, got {value!r}")


def check_choice(flag: str, hint: Any, word: str) -> None:
    """Check a word on a command line, for a field that takes one of several names.

    Args:
        flag: as typed.
        hint: the field's annotation.

    Raises:
        ConfigError: it is none of them.
    """
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    choices = [option for option in options if option is not types.NoneType]
    if any(typing.get_origin(choice) is not typing.Literal for choice in choices):
        return
    names = [str(name) for choice in choices for name in typing.get_args(choice)]
    if word not in names and not (word == "None" and len(choices) < len(options)):
        raise ConfigError(f"{flag} must be one of {', '.join(names)}, got {word!r}")


def _fits(value: object, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(parts)}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_describe, parts))
    if origin is tuple:
        return f"a tuple, each item {_describe(parts[0])}"
    names = {int: "an integer", float: "a number", str: "a string", bool: "True or False", types.NoneType: "None"}
    return names.get(hint) or f"a {hint.__name__}"


def check_positive(flag: str, value: int | None) -> None:
    """
    Raises:
        ConfigError: the flag's value is below 1.
    """
    if value is not None and value < 1:
        raise ConfigError(f"{flag} must be at least 1, got {value}")
