"""The flags of other servers as their own sources declare them: peers/*.json, made by scripts/peers/peer_flags.py."""

import dataclasses
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from palladio.runtime.interface.errors import ConfigError

SERVERS: Final = MappingProxyType({"sglang": "SGLang", "vllm": "vLLM", "sglang-jax": "SGLang-JAX"})
"""File → the server's name, as in a sentence."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_EXPONENTS = MappingProxyType({"k": 1, "m": 2, "g": 3, "t": 4})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerFlag:
    """One flag of one server.

    Attributes:
        name: with underscores, without dashes in front.
        kind: flag takes no value; switch is `--x` or `--no-x`; size takes 8k too; json an object; ints, floats and strs
            several values; int, float and str one.
        default: what the server does without the flag.
        has_default: whether its source says so; it may compute it.
    """

    name: str
    kind: str
    default: Any = None
    has_default: bool = False

    @property
    def is_switch(self) -> bool:
        return self.kind in ("flag", "switch")

    def check(self, typed: str, values: Sequence[str]) -> None:
        """Check that values, as typed on a command line, have the flag's type.

        Raises:
            ConfigError: they have not; the message names the flag, the value and what is allowed.
        """
        if self.is_switch:
            if values and [value.lower() for value in values] not in (["true"], ["false"]):
                raise ConfigError(f"{typed} takes no value, got {' '.join(values)!r}")
            return
        if not values:
            raise ConfigError(f"{typed} needs a value")
        if len(values) > 1 and not self.kind.endswith("s"):
            raise ConfigError(f"{typed} takes one value, got {' '.join(values)!r}")
        for value in values:
            self._parse(typed, value)

    def asks_nothing(self, values: Sequence[str]) -> bool:
        """Whether values of the right type are what that server does without the flag."""
        if not self.has_default:
            return False
        if self.is_switch:
            return (not values or values[0].lower() == "true") == bool(self.default)
        parsed = [self._parse(self.name, value) for value in values]
        return parsed == (self.default if isinstance(self.default, list) else [self.default])

    def _parse(self, typed: str, text: str) -> Any:
        kind = self.kind.removesuffix("s")
        if kind == "size":
            return read_size(typed, text)
        if kind == "json":
            return _read_json(typed, text)
        try:
            return int(text) if kind == "int" else float(text) if kind == "float" else text
        except ValueError:
            noun = "an integer" if kind == "int" else "a number"
            raise ConfigError(f"{typed} takes {noun}, got {text!r}") from None


def read_size(typed: str, text: str) -> int:
    """Read an integer that may end with a unit: 32k is 32,000, 32K is 32,768.

    Raises:
        ConfigError: it is neither.
    """
    match = _SIZE.fullmatch(text)
    try:
        if match is None:
            return int(text)
        unit = match[2]
        return int(float(match[1]) * (1000 if unit.islower() else 1024) ** _EXPONENTS[unit.lower()])
    except (ValueError, OverflowError):
        raise ConfigError(f"{typed} takes an integer, such as 32768 or 32k, got {text!r}") from None


def _read_json(typed: str, text: str) -> Any:
    """Read JSON; words that do not begin as an object are taken as they are: some of these flags take names too."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{typed} is not valid JSON: {error}") from None


Peers = Mapping[str, Mapping[str, PeerFlag]]
"""Server → name or alias → flag."""


def load_peer_flags() -> Peers:
    """Read all files."""
    folder = importlib.resources.files("palladio.runtime.interface.flags").joinpath("peers")
    found: dict[str, Mapping[str, PeerFlag]] = {}
    for file, server in SERVERS.items():
        rows = json.loads(folder.joinpath(f"{file}.json").read_text(encoding="utf-8"))["flags"]
        flags: dict[str, PeerFlag] = {}
        for row in rows:
            flag = PeerFlag(
                name=row["name"], kind=row["kind"], default=row.get("default"), has_default="default" in row
            )
            flags |= dict.fromkeys((row["name"], *row.get("aliases", ())), flag)
        found[server] = MappingProxyType(flags)
    return MappingProxyType(found)


def sizes(peers: Peers) -> frozenset[str]:
    """Give the names of flags whose integers may have a unit (32k) on some server."""
    return frozenset(name for flags in peers.values() for name, flag in flags.items() if flag.kind == "size")
