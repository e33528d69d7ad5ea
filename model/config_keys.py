"""Reading values out of an untyped config.json, with errors that name the key."""

from collections.abc import Mapping
from typing import Any

from palladio.model.errors import ConfigError


class Keys:
    """Typed access to a JSON object. `where` is put before key names in messages (for nested objects)."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where

    def count(self, key: str) -> int:
        """A required whole number of at least 1."""
        value = self.optional_count(key)
        if value is None:
            raise ConfigError(f"{self._where}{key} is missing from config.json")
        return value

    def optional_count(self, key: str, *, least: int = 1, default: int | None = None) -> int | None:
        """A whole number of at least `least`; absent: `default`; null: None."""
        value = self.values.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self._where}{key} must be a whole number of at least {least}, found {value!r}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A number above 0; absent or null: `default`, or, without one, an error."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self._where}{key} is missing from config.json")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ConfigError(f"{self._where}{key} must be a number above 0, found {value!r}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}{key} must be true or false, found {value!r}")
        return value

    def require(self, key: str, supported: object, *, default: object) -> None:
        """Any other value than `supported` is an error."""
        value = self.values.get(key, default)
        if value is not None and value != supported:
            raise ConfigError(f"{self._where}{key}: {value!r} is not supported; only {supported!r}")
