"""Reading values out of an untyped config.json, with errors that name the key."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from palladio.model.base.errors import ConfigError

MAX_INT = 2**31 - 1  # of what goes to the device
_MIN_NUMBER, _MAX_NUMBER = 1e-18, 1e18  # float32 holds them, and what is divided by them
_SHOWN = 100  # characters of a wrong value


def shown(value: object) -> str:
    """Format a wrong value for a message, cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "a number with thousands of digits"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class Keys:
    """Typed access to a JSON object.

    Attributes:
        values: the object, with a default for each key that it leaves out.
        defaults: the defaults; some methods use them in place of null, too.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "", defaults: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Make the access object.

        Args:
            values: the JSON object.
            where: prefix of key names in messages, for nested objects.
            defaults: values of keys that the object leaves out.
        """
        self.values: Mapping[str, Any] = {**defaults, **values}
        self.defaults = defaults
        self._where = where

    def renamed(self, older: Mapping[str, str]) -> "Keys":
        """Return a copy whose messages use the new names; where both names are present, the new one wins."""
        moved = {new: self.values[old] for old, new in older.items() if old in self.values and new not in self.values}
        return Keys({**self.values, **moved}, self._where, self.defaults)

    def count(self, key: str, *, most: int = MAX_INT) -> int:
        """Read a required whole number in 1 … `most`."""
        value = self.optional_count(key, most=most)
        if value is None:
            raise ConfigError(f"{self._where}{key} is missing from config.json")
        return value

    def optional_count(
        self, key: str, *, least: int = 1, most: int = MAX_INT, default: int | None = None
    ) -> int | None:
        """Read a whole number in `least` … `most`; absent: `default`; null: None."""
        value = self.values.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self._where}{key} must be a whole number of at least {least}, found {shown(value)}")
        if value > most:
            raise ConfigError(f"{self._where}{key} must be at most {most}, found {shown(value)}")
        return value

    def optional_token(self, key: str) -> int | None:
        """Read a token id; absent, null, or negative (as some files write "none"): None."""
        value = self.values.get(key)
        is_none = isinstance(value, int) and not isinstance(value, bool) and value < 0
        return None if is_none else self.optional_count(key, least=0)

    def count_or_default(self, key: str, *, most: int = MAX_INT) -> int | None:
        """Read a whole number in 1 … `most`; absent or null: the default, which may be None."""
        return self.optional_count(key, most=most) or Keys({}, defaults=self.defaults).optional_count(key, most=most)

    def default_number(self, key: str, otherwise: float) -> float:
        """Return the default of a number, or `otherwise` if the key has none."""
        return Keys({}, defaults=self.defaults).number(key, default=otherwise)

    def number(self, key: str, *, default: float | None = None) -> float:
        """Read a number above 0, neither tiny nor huge; absent or null: the default, or, without one, an error."""
        value = self.values.get(key)
        if value is None:
            value = self.defaults.get(key, default)
        if value is None:
            raise ConfigError(f"{self._where}{key} is missing from config.json")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ConfigError(f"{self._where}{key} must be a number greater than 0, found {shown(value)}")
        if not _MIN_NUMBER <= value <= _MAX_NUMBER:
            raise ConfigError(
                f"{self._where}{key} must be between {_MIN_NUMBER:g} and {_MAX_NUMBER:g}, found {shown(value)}"
            )
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Read a number as `number` does; null, or absent without a default: None."""
        return None if self.values.get(key) is None else self.number(key)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a required list of numbers, each as `number` reads it."""
        value = self.values.get(key)
        if value is None:
            raise ConfigError(f"{self._where}{key} is missing from config.json")
        if not isinstance(value, list):
            raise ConfigError(f"{self._where}{key} must be a list of numbers, found {shown(value)}")
        return tuple(Keys({key: item}, self._where).number(key) for item in value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}{key} must be true or false, found {shown(value)}")
        return value

    def require(self, key: str, supported: object, *, default: object) -> None:
        """Raise ConfigError for any value other than `supported`."""
        value = self.values.get(key, default)
        if value is not None and value != supported:
            raise ConfigError(f"{self._where}{key}: {shown(value)} is not supported; only {supported!r}")
