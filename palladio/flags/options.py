"""A launch command, cut into options: each flag with the words that follow it, and where it stands."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from palladio.runtime.interface.errors import ConfigError

_NEGATIVE_NUMBER: Final = re.compile(r"-\.?\d")
_OPTIMIZATION: Final = re.compile(r"-O(=?\d|$)")  # vLLM's -O3
_MODEL_NAMES: Final = ("model_path", "model", "model_id")


@dataclasses.dataclass(frozen=True)
class Option:
    """One option as typed.

    Attributes:
        typed: the flag as typed, with its dashes.
        name: the flag as a field name: with underscores, without dashes in front.
        values: the words that follow it.
        place: where it stands, if not on the command line: a file with a line, or a variable of the environment.
        rank: an option gives way to those of a higher rank: -1 the embedded model's, 0 variables, 1 a file, 2 the
            command line.
        typed_values: the words as typed, if `values` are others that they stand for; None: they are the same.
    """

    typed: str
    name: str
    values: list[str]
    place: str = ""
    rank: int = 2
    typed_values: tuple[str, ...] | None = None

    @classmethod
    def of(cls, typed: str, values: Sequence[str], *, place: str = "", rank: int = 2) -> "Option":
        return cls(typed, typed.lstrip("-").replace("-", "_"), list(values), place, rank)

    @property
    def spelling(self) -> str:
        """What `--x`, `--X-Y=1` and `--no-x` have in common: they are one name of a flag. A model's own is its own."""
        return "--" + self.typed_name if self.typed.startswith("-") else self.typed

    @property
    def typed_name(self) -> str:
        """The flag as typed, with underscores and without `no_`."""
        return self.typed.lstrip("-").replace("-", "_").removeprefix("no_")

    @property
    def shown(self) -> str:
        """The option as an error shows it: as typed, with its value."""
        return " ".join((self.typed, *(self.values if self.typed_values is None else self.typed_values)))

    def become(self, words: Sequence[str]) -> "list[Option]":
        """Give the options that stand in the place of this one: they keep its words as typed, and its place."""
        words_typed = tuple(self.values) if self.typed_values is None else self.typed_values
        return [
            dataclasses.replace(self, name=one.name, values=one.values, typed_values=words_typed)
            for one in read_options(words)
        ]


def read_options(argv: Sequence[str]) -> list[Option]:
    """Cut a command's words into options. A word that follows no flag is the model.

    Raises:
        ConfigError: there are two models, or a key of a dotted flag (`--x.y 1`) is given twice.
    """
    options: list[Option] = []
    more: list[str] | None = None  # values of the last option; None: its value stands behind "="
    model: str | None = None
    for word in argv:
        if word.startswith("-") and not _NEGATIVE_NUMBER.match(word):
            typed, has_value, value = word.partition("=")
            options.append(Option.of(typed, [value] if has_value else []))
            more = None if has_value else options[-1].values
        elif more is not None:
            more.append(word)
        elif model is None:
            model = word
        else:
            raise ConfigError(
                f"unexpected argument {word!r}: the model is already {model!r}; everything else must be a flag"
            )
    options = _join_dotted(options)
    if model is None:
        return options
    for option in options:
        if option.name in _MODEL_NAMES:
            raise ConfigError(f"the model is given twice: as {model!r} and with {option.typed}; remove one of them")
    return [Option(model, "model_path", [model]), *options]


def _join_dotted(options: Sequence[Option]) -> list[Option]:
    """Make one option with an object of `--x.a 1 --x.b.c 2`, as vLLM takes them."""
    joined: dict[str, dict[str, Any]] = {}
    result: list[Option] = []
    for option in options:
        base, dot, path = option.name.partition(".")
        if not dot or _OPTIMIZATION.match(option.typed):
            result.append(option)
            continue
        if base not in joined:
            joined[base] = {}
            result.append(Option.of(option.typed.partition(".")[0], []))
        _put(joined[base], path.split("."), option)
    return [
        dataclasses.replace(option, values=[json.dumps(joined[option.name])])
        if option.name in joined and not option.values
        else option
        for option in result
    ]


def _put(target: dict[str, Any], path: Sequence[str], option: Option) -> None:
    *folders, last = path
    for name in folders:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{option.typed}: {name} has a value already")
    if last in target:
        raise ConfigError(f"{option.typed} is given twice")
    target[last] = _value(option.values)


def _value(words: Sequence[str]) -> Any:
    if not words:
        return True
    try:
        return json.loads(words[0])
    except (ValueError, RecursionError):
        return words[0]


def options_of_object(values: Mapping[str, tuple[Any, int]], path: str) -> list[Option]:
    """Make options of a configuration file; what has no value (null, an empty list) is left out.

    Args:
        values: key → line, and True, False, None, a word, or a list of words or other values.
        path: the file, as errors name it.
    """
    options: list[Option] = []
    for key, (value, line) in values.items():
        place = f"{path}, line {line}"
        if value is False:
            options.append(Option.of(f"--no-{key}", [], place=place, rank=1))
        elif value is True:
            options.append(Option.of(f"--{key}", [], place=place, rank=1))
        elif isinstance(value, list) and value:
            plain = [item for item in value if isinstance(item, str)]
            words = plain if len(plain) == len(value) else [json.dumps(value)]
            options.append(Option.of(f"--{key}", words, place=place, rank=1))
        elif isinstance(value, str):
            options.append(Option.of(f"--{key}", [value], place=place, rank=1))
    return options
