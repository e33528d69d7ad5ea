"""Variables of the environment that launch lines and images of other servers set: what each is here.

They have the verdicts of flags, from environment.json: one stands for a flag of ours, another changes nothing, a third
asks for what is not here. The server says so once, at its start, and never shows their values.
"""

import dataclasses
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palladio.flags.options import Option, read_options
from palladio.runtime.interface.errors import ConfigError, UnsupportedFlagError

_OFF = frozenset({"", "0", "false", "no", "off"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerVariable:
    """A variable, or a family of them.

    Attributes:
        name: of the variable; a * at its end stands for any others.
        verdict: applied: it stands for a flag of ours, which wins; accepted: it changes nothing; refused: an error;
            same: others read it too, and nothing is to be said.
        here: applied: the words of the flag, {} for the variable's value; accepted: why it changes nothing; refused:
            what to use instead.
        values: of what is applied: value → the flag's; others are taken as they are.
        switch: whether an empty value, 0, false, no and off ask for nothing.
    """

    name: str
    verdict: Literal["applied", "accepted", "refused", "same"]
    here: str
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    switch: bool = False

    def asks_nothing(self, value: str) -> bool:
        return value == "" or (self.switch and value.strip().lower() in _OFF)

    def options(self, name: str, value: str) -> list[Option]:
        """Give the options that an applied variable stands for."""
        word = self.values.get(value.upper(), value)
        text = self.here.replace(" {}", "={}")  # one word: a value may begin with a dash
        words = [part.replace("{}", word) for part in text.split()]
        place = f"variable {name}"
        return [dataclasses.replace(option, place=place, rank=0) for option in read_options(words)]


@dataclasses.dataclass(frozen=True)
class PeerEnvironment:
    """What the variables of an environment ask for.

    Attributes:
        options: of a command line, to which they give way.
        notes: lines for the log about variables that set a flag.
        warnings: lines about variables that change nothing, one for each reason.
        errors: one for each variable that asks for what is not here.
    """

    options: tuple[Option, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()


def load_peer_variables() -> list[PeerVariable]:
    """Read every row of the table, in its order."""
    text = importlib.resources.files("palladio.flags").joinpath("environment.json").read_text(encoding="utf-8")
    return [row for entry in json.loads(text) for row in _rows(entry)]


def _rows(entry: Mapping[str, Any]) -> list[PeerVariable]:
    given = {key: value for key, value in entry.items() if key != "names"}
    return [PeerVariable(name=name, **given) for name in entry["names"]]


class PeerVariables:
    """Finds a variable by its name."""

    def __init__(self, rows: Sequence[PeerVariable]) -> None:
        self._exact = {row.name: row for row in rows if not row.name.endswith("*")}
        families = [row for row in rows if row.name.endswith("*")]
        self._families = sorted(families, key=lambda row: -len(row.name))

    def find(self, name: str) -> PeerVariable | None:
        """The row of this variable, or of the family with the longest name that fits."""
        families = (row for row in self._families if name.startswith(row.name.removesuffix("*")))
        return self._exact.get(name) or next(families, None)

    @property
    def order(self) -> Mapping[str, int]:
        """Name → place in the table, of variables with a row of their own."""
        return {name: place for place, name in enumerate(self._exact)}


def read_peer_environment(environment: Mapping[str, str]) -> PeerEnvironment:
    """Read what variables of other servers ask for."""
    table = PeerVariables(load_peer_variables())
    places = table.order
    options: list[Option] = []
    notes: list[str] = []
    without: dict[str, list[str]] = {}
    errors: list[ConfigError] = []
    set_by: dict[str, str] = {}
    for name in sorted(environment, key=lambda name: (places.get(name, len(places)), name)):
        row = table.find(name)
        if row is None or row.verdict == "same" or row.asks_nothing(environment[name]):
            continue
        if row.verdict == "accepted":
            without.setdefault(row.here, []).append(name)
        elif row.verdict == "refused":
            errors.append(
                UnsupportedFlagError(f"variable {name}: {row.here}", flag=f"variable {name}", feature=row.here)
            )
        else:
            for option in row.options(name, environment[name]):
                if option.name in set_by:
                    notes.append(f"{name} gives way to {set_by[option.name]}: both set {option.typed}")
                    continue
                set_by[option.name] = name
                options.append(option)
                notes.append(f"{name} sets {option.typed}, unless the flag is given")
    warnings = [f"{', '.join(names)}: no effect: {reason}" for reason, names in without.items()]
    return PeerEnvironment(tuple(options), tuple(notes), tuple(warnings), tuple(errors))
