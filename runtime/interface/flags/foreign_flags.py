"""Flags of other servers, and newer ones of SGLang's: what each is here, read from foreign_flags.json.

Users of another server type its flags. One that means the same as one of ours is another name of it, or
stands for some of ours; of any other, the table says what to use here. Rows with the same fate share an entry of the
file. SGLang's older flags, with meanings and defaults, are in sglang_flags.json.
"""

import dataclasses
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from palladio.runtime.interface.errors import ConfigError, UnsupportedFlagError
from palladio.runtime.interface.flags.peer_flags import PeerFlag, Peers, load_peer_flags

Server = Literal["vLLM", "SGLang", "SGLang-JAX", "JetStream"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignFlag:
    """One flag, or a family of them.

    Attributes:
        name: as a field name: with underscores, without dashes in front; a * at its end stands for any others.
        of: the servers that have it.
        verdict: alias: another name of one of ours; sets: it stands for some of ours; accepted: it changes nothing;
            refused: an error.
        here: alias: the name of ours; sets: the words that it stands for, {} for its value; accepted: why it changes
            nothing; refused: what to use instead, or why not.
        least: of an accepted flag that takes an integer: the smallest one, which asks for what is done anyway.
        values: of an alias or of what sets: value → the words that it stands for; no words: it asks for what is done
            anyway.
        otherwise: of what sets: why another value than those is refused; "": such a value is a mistake.
        replaces: of what sets: values of the same flag of ours that may stand beside it.
        leaves_open: of what sets: values that contradict no other flag.
        computed: of what sets: what has to be computed from other flags.
        passes: zeros: an object of zeros asks for nothing.
        note: of an alias or of what sets: how the two differ, said once at the start.
        peers: the flags as the servers' sources declare them.
    """

    name: str
    of: tuple[Server, ...]
    verdict: Literal["alias", "sets", "accepted", "refused"]
    here: str
    least: int | None = None
    values: Mapping[str, str] | None = None
    otherwise: str = ""
    replaces: tuple[str, ...] = ()
    leaves_open: tuple[str, ...] = ()
    computed: Literal["", "expert_parallel"] = ""
    passes: Literal["", "zeros"] = ""
    note: str = ""
    peers: Peers = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def servers(self) -> str:
        """The servers, as in a sentence."""
        return " and ".join(filter(None, (", ".join(self.of[:-1]), self.of[-1])))

    @property
    def stands_for_ours(self) -> bool:
        return self.verdict in ("alias", "sets")

    def words(self, typed: str, values: Sequence[str]) -> list[str]:
        """Give the words of ours that the flag, typed so with these values, stands for.

        Raises:
            ConfigError: a value is not allowed, or is missing.
        """
        if self.values is not None and len(values) == 1 and values[0] in self.values:
            return self.values[values[0]].split()
        if self.verdict == "alias":
            return ["--" + self.here.replace("_", "-"), *values]
        if self.otherwise and values:
            flag = f"{typed} {' '.join(values)}"
            raise UnsupportedFlagError(f"{flag} is not supported: {self.otherwise}", flag=flag, feature=self.otherwise)
        if not self.here and not self.computed:
            got = repr(" ".join(values)) if values else "nothing"
            raise ConfigError(f"{typed} must be one of {', '.join(self.values or ())}, got {got}")
        if "{}" not in self.here:
            if values and [value.lower() for value in values] != ["true"]:
                raise ConfigError(f"{typed} takes no value, got {' '.join(values)!r}")
            return self.here.split()
        if len(values) != 1:
            raise ConfigError(f"{typed} takes one value, got {' '.join(values)!r}" if values else _no_value(typed))
        return self.here.replace("{}", values[0]).split()

    def accept(self, typed: str, values: Sequence[str]) -> str | None:
        """Give the verdict on a flag that stands for none of ours.

        Args:
            typed: the flag as typed.
            values: the words behind it.

        Returns:
            One line for the log, or None when there is nothing to say.

        Raises:
            ConfigError: it is refused, and the message says what to use; or its value does not fit.
        """
        if self.least is not None:
            return self._check_number(typed, _integer(typed, values), self.least)
        if self._asks_nothing(typed, values):
            return None
        is_off = [value.lower() for value in values] == ["false"]
        return self._verdict(typed, off=f"{typed} {values[0]}" if is_off else "")

    def accept_keyword(self, typed: str, value: object) -> str | None:
        """Give the verdict on a keyword of `Engine`, as `accept` does. None asks for nothing."""
        if value is None:
            return None
        if self.least is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{typed} must be an integer, got {value!r}")
            return self._check_number(typed, value, self.least)
        if any(
            flag.has_default and flag.default == value and type(flag.default) is type(value)
            for flag in self._declared(typed)
        ):
            return None
        return self._verdict(typed, off=f"{typed}=False" if value is False else "")

    def turn_off(self, typed: str) -> str | None:
        """Give the verdict on `--no-x` of a switch that stands for none of ours.

        Args:
            typed: the flag as typed, with its `no`.
        """
        name = typed.lstrip("-").replace("-", "_").removeprefix("no_")
        if any(flag.is_switch and flag.asks_nothing(["false"]) for flag in self._declared(name)):
            return None
        return self._verdict(typed, off="")

    def _asks_nothing(self, typed: str, values: Sequence[str]) -> bool:
        """Whether the values are what a server that has the flag does without it. A server decides whose type fits."""
        declared = self._declared(typed.lstrip("-").replace("-", "_"))
        errors = []
        for flag in declared:
            try:
                flag.check(typed, values)
            except ConfigError as error:
                errors.append(error)
                continue
            is_off = [value.lower() for value in values] == ["false"]
            if flag.asks_nothing(values) and (is_off or self.verdict == "refused" or not flag.is_switch):
                return True
        if declared and len(errors) == len(declared) and self.verdict == "accepted":
            raise errors[0]
        return self.passes == "zeros" and all(map(_is_zeros, values)) and bool(values)

    def _declared(self, name: str) -> list[PeerFlag]:
        tables = [self.peers[server] for server in self.of if server in self.peers]
        return [flags[name] for flags in tables if name in flags]

    def _check_number(self, typed: str, number: int, least: int) -> str | None:
        if number < least:
            raise ConfigError(f"{typed} must be at least {least}, got {number}")
        return None if number == least else f"{typed} {number} has no effect: {self.here}"

    def _verdict(self, typed: str, off: str) -> str:
        """Give the warning, or raise the error.

        Args:
            off: the flag as typed, if it is to turn something off.
        """
        if self.verdict == "refused":
            message = f"{typed} is a {self.servers} flag: {self.here}"
            raise UnsupportedFlagError(message, flag=typed, feature=self.here)
        if off:
            raise UnsupportedFlagError(f"{off} is not supported: {self.here}", flag=off, feature=self.here)
        return f"{typed} has no effect: {self.here}"


def _integer(typed: str, values: Sequence[str]) -> int:
    if not values:
        raise ConfigError(_no_value(typed))
    if len(values) > 1:
        raise ConfigError(f"{typed} takes one value, got {' '.join(values)!r}")
    try:
        return int(values[0])
    except ValueError:
        raise ConfigError(f"{typed} takes an integer, got {values[0]!r}") from None


def _no_value(typed: str) -> str:
    return f"{typed} needs a value"


def _is_zeros(text: str) -> bool:
    """Whether text is an object, or image=0 as older versions of vLLM take it, of which every number is 0."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if all(separator for _, separator, _ in pairs):
        return all(value.strip() == "0" for _, _, value in pairs)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and all(
        (value.get("count") if isinstance(value, dict) else value) == 0 for value in given.values()
    )


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
        """The row of this flag, or of the family with the longest name that fits."""
        families = [flag for flag in self._families if name.startswith(flag.name.removesuffix("*"))]
        return self._exact.get(name) or max(families, key=lambda flag: len(flag.name), default=None)


def load_foreign_flags(peers: Peers | None = None) -> list[ForeignFlag]:
    """Read every row of the table, in its order.

    Args:
        peers: the flags as the servers' sources declare them; None: they are read too.
    """
    peers = load_peer_flags() if peers is None else peers
    text = (
        importlib.resources.files("palladio.runtime.interface.flags")
        .joinpath("foreign_flags.json")
        .read_text(encoding="utf-8")
    )
    return [flag for entry in json.loads(text) for flag in _rows(entry, peers)]


def _rows(entry: Mapping[str, Any], peers: Peers) -> list[ForeignFlag]:
    given = {key: value for key, value in entry.items() if key != "names"}
    given["of"] = tuple(entry["of"])
    given |= {key: tuple(entry.get(key, ())) for key in ("replaces", "leaves_open")}
    if "values" in entry:
        given["values"] = MappingProxyType(entry["values"])
    return [ForeignFlag(name=name, peers=peers, **given) for name in entry["names"]]
