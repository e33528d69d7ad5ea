"""What becomes of SGLang's flags that are not ours, on the command line and as keywords of `Engine`: one row a flag,
read from sglang_flags.json.

Verdicts: K, the same meaning here (built once it is a field of ServerArgs); P, planned; W, without meaning on XLA;
E, removed from SGLang. K and P flags that are not built are accepted at SGLang's default and are an error otherwise,
but for switches of what is always on here; W flags are accepted with a warning that says why; E flags are an error.
Flags of the HTTP server are, as keywords, accepted with a warning, or an error if results would be different.
"""

import dataclasses
import importlib.resources
import json
from collections.abc import Collection, Sequence
from typing import Literal

from palladio.runtime.interface.errors import ConfigError

Scalar = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SglangFlag:
    """One flag of SGLang's launch command.

    Attributes:
        name: as a field name: with underscores, without dashes in front.
        kind: flag takes no value; ints, floats and strs take one or more; the others take one.
        default: SGLang's.
        meaning: what it does in SGLang.
        reason: W: why it has no effect; E: why it is refused; else what to do instead, if anything.
        aliases: other names of the same flag.
        always_on: of a switch that is not ours: what it asks for is how things are here.
        here: one value, if SGLang's default is not true of this server: what the `server_args=` line shows instead.
        foreign_values: of a flag that is ours: values that only mean something in SGLang; `reason` says why.
        planned_values: of a flag that is ours: values that this server does not have yet; `reason` says what it has.
        offline: of a flag of our HTTP server: why it has no effect as a keyword of `Engine`.
        not_offline: of such a flag, if results would be different: what to do instead.
    """

    name: str
    verdict: Literal["K", "P", "W", "E"]
    kind: Literal["flag", "int", "float", "str", "ints", "floats", "strs"]
    default: Scalar
    meaning: str
    reason: str = ""
    aliases: tuple[str, ...] = ()
    foreign_values: tuple[str, ...] = ()
    planned_values: tuple[str, ...] = ()
    always_on: str = ""
    here: tuple[Scalar, ...] = ()
    offline: str = ""
    not_offline: str = ""

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def value(self) -> Scalar:
        """What is true of this server, if the flag is not ours."""
        if self.here:
            return self.here[0]
        return True if self.always_on else self.default

    def accept(self, typed: str, values: Sequence[str]) -> str | None:
        """Check the flag and its values, as typed on a command line; it must not be one of ours.

        Returns:
            One line for the log, or None when there is nothing to say.

        Raises:
            ConfigError: planned and not at its default, removed, or malformed.
        """
        return self._check(typed, self._parse(typed, values))

    def accept_keyword(self, typed: str, value: object) -> str | None:
        """Check a keyword of `Engine`, as `accept` does a flag. SGLang's default, or None, asks for nothing."""
        if value is None or (value == self.default and isinstance(value, bool) == isinstance(self.default, bool)):
            return None
        if self.kind == "flag" and not isinstance(value, bool):
            raise ConfigError(f"{typed} must be True or False, got {value!r}")
        if self.not_offline:
            raise ConfigError(f"{typed} is not supported offline: {self.not_offline}")
        if self.offline:
            return f"{typed} has no effect offline: {self.offline}"
        return self._check(typed, value)

    def means_nothing_here(self, values: Collection[object]) -> bool:
        """Whether the values of this flag, which is ours, only mean something in SGLang."""
        return bool(values) and all(value in self.foreign_values for value in values)

    def check_planned(self, typed: str, values: Collection[object]) -> None:
        """Check the values of this flag, which is ours.

        Args:
            typed: the flag and the value, as typed.

        Raises:
            ConfigError: SGLang has it, and this server does not yet.
        """
        if any(isinstance(value, str) and value.upper() in self.planned_values for value in values):
            raise ConfigError(f"{typed} is not supported yet; {self.reason}")

    def _check(self, typed: str, value: object) -> str | None:
        if self.verdict == "W":
            return f"{typed} has no effect here: {self.reason}"
        if self.verdict == "E":
            raise ConfigError(f"{typed} is not supported: {self.reason}")
        if self.always_on:
            return f"{typed} has no effect: {self.always_on}"
        if value != self.default:
            hint = f"; {self.reason}" if self.reason else ""
            raise ConfigError(f"{typed} is not supported yet (only its default, {self.default!r}, is accepted){hint}")
        return None

    def _parse(self, typed: str, values: Sequence[str]) -> Scalar | list[Scalar]:
        if self.kind == "flag":
            if values:
                raise ConfigError(f"{typed} takes no value, got {' '.join(values)!r}")
            return True
        if not values:
            raise ConfigError(f"{typed} needs a value")
        if self.kind.endswith("s"):
            return [self._number(typed, value) for value in values]
        if len(values) > 1:
            raise ConfigError(f"{typed} takes one value, got {' '.join(values)!r}")
        return self._number(typed, values[0])

    def _number(self, typed: str, text: str) -> Scalar:
        number = self.kind.removesuffix("s")
        try:
            return int(text) if number == "int" else float(text) if number == "float" else text
        except ValueError:
            noun = "an integer" if number == "int" else "a number"
            raise ConfigError(f"{typed} takes {noun}, got {text!r}") from None


def load_sglang_flags() -> list[SglangFlag]:
    """Every flag of the table, in the order of SGLang's `server_args=` line."""
    text = (
        importlib.resources.files("palladio.runtime.interface.flags")
        .joinpath("sglang_flags.json")
        .read_text(encoding="utf-8")
    )
    lists = ("aliases", "foreign_values", "planned_values", "here")
    return [SglangFlag(**row | {key: tuple(row.get(key, ())) for key in lists}) for row in json.loads(text)]
