"""Flags of other servers, and newer ones of SGLang's: what each is here, one row a flag, read from foreign_flags.json.

Users of another server type its flags. One that means exactly the same as one of ours is another name of it; of any
other, the table says what to use here. SGLang's own table, with defaults and warnings, is sglang_flags.json.
"""

import dataclasses
import importlib.resources
import json
from collections.abc import Sequence
from typing import Literal

from palladio.runtime.interface.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignFlag:
    """One flag, or a family of them.

    Attributes:
        name: as a field name: with underscores, without dashes in front; a * at its end stands for any others.
        of: the servers that have it, as in a sentence.
        verdict: alias: another name of one of ours; accepted: it changes nothing; refused: an error.
        here: alias: the name of ours; accepted: why it changes nothing; refused: what to use instead, or why not.
        least: of an accepted flag that takes an integer: the smallest one, which asks for what is done anyway.
    """

    name: str
    of: Literal["vLLM", "SGLang", "JetStream", "vLLM and SGLang"]
    verdict: Literal["alias", "accepted", "refused"]
    here: str
    least: int | None = None

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.of.split(" and "))

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    def accept(self, typed: str, values: Sequence[str]) -> str | None:
        """Check a flag and its values, as typed; it must not be an alias.

        Returns:
            One line for the log, or None when there is nothing to say.

        Raises:
            ConfigError: it is refused, and the message says what to use; or its value does not fit.
        """
        if self.least is not None:
            if not values:
                raise ConfigError(f"{typed} needs a value")
            if len(values) > 1:
                raise ConfigError(f"{typed} takes one value, got {' '.join(values)!r}")
            try:
                number = int(values[0])
            except ValueError:
                raise ConfigError(f"{typed} takes an integer, got {values[0]!r}") from None
            return self._check_number(typed, number, self.least)
        is_off = [value.lower() for value in values] == ["false"]
        return self._check(typed, off=f"{typed} {values[0]}" if is_off else "")

    def accept_keyword(self, typed: str, value: object) -> str | None:
        """Check a keyword of `Engine`, as `accept` does a flag. None asks for nothing."""
        if value is None:
            return None
        if self.least is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{typed} must be an integer, got {value!r}")
            return self._check_number(typed, value, self.least)
        return self._check(typed, off=f"{typed}=False" if value is False else "")

    def _check_number(self, typed: str, number: int, least: int) -> str | None:
        if number < least:
            raise ConfigError(f"{typed} must be at least {least}, got {number}")
        return None if number == least else f"{typed} {number} has no effect: {self.here}"

    def _check(self, typed: str, off: str) -> str:
        """Raise, or return the warning.

        Args:
            off: the flag as typed, if it is to turn something off.
        """
        if self.verdict == "refused":
            raise ConfigError(f"{typed} is a {self.of} flag: {self.here}")
        if off:
            raise ConfigError(f"{off} is not supported: {self.here}")
        return f"{typed} has no effect: {self.here}"


class ForeignFlags:
    """Finds a flag by its name."""

    def __init__(self, flags: Sequence[ForeignFlag]) -> None:
        self._exact = {flag.name: flag for flag in flags if not flag.name.endswith("*")}
        self._families = [flag for flag in flags if flag.name.endswith("*")]

    @property
    def names(self) -> list[str]:
        """Names of all flags, without families."""
        return list(self._exact)

    def find(self, name: str) -> ForeignFlag | None:
        """The row of this flag, or of its family."""
        family = (flag for flag in self._families if name.startswith(flag.name.removesuffix("*")))
        return self._exact.get(name) or next(family, None)


def load_foreign_flags() -> list[ForeignFlag]:
    """Every row of the table, in its order."""
    text = (
        importlib.resources.files("palladio.runtime.interface.flags")
        .joinpath("foreign_flags.json")
        .read_text(encoding="utf-8")
    )
    return [ForeignFlag(**row) for row in json.loads(text)]
