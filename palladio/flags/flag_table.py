"""All flags that are known: ours, SGLang's, and those of other servers; and what becomes of each that is typed."""

import dataclasses
import difflib
import typing
from collections.abc import Sequence
from typing import Any

from palladio.flags.options import Option, read_options
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlag, ForeignFlags, load_foreign_flags
from palladio.runtime.interface.flags.peer_flags import load_peer_flags, read_size, sizes
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags
from palladio.runtime.interface.flags.typed_values import typed_value


@dataclasses.dataclass(frozen=True)
class OwnValue:
    """A flag of ours with the value that a command gives it.

    Attributes:
        name: of the flag of ours.
        value: of the type of its field.
        option: how it was typed.
        replaces: values of the flag that may stand beside it and count for nothing.
    """

    name: str
    value: Any
    option: Option
    replaces: tuple[str, ...] = ()

    @property
    def typed_name(self) -> str:
        """The flag as typed, with underscores and without `no_`: two spellings of one name are the same."""
        return self.option.typed_name


class FlagTable:
    """Finds flags by their names.

    Args:
        own: flags of ours: name → default.
        hints: name → annotation of the field.
    """

    def __init__(self, own: dict[str, Any], hints: dict[str, Any]) -> None:
        self.ours = own
        self._hints = hints
        self._theirs = {name: flag for flag in load_sglang_flags() for name in (flag.name, *flag.aliases)}
        peers = load_peer_flags()
        self._others = ForeignFlags(load_foreign_flags(peers))
        self._sizes = sizes(peers)

    def expand(self, option: Option) -> tuple[list[Option], ForeignFlag | None]:
        """Give the options of ours that an option stands for, and the row that says so; None: it stands for itself.

        Raises:
            ConfigError: a value of such a flag is not allowed.
        """
        if option.name == "ep" and not option.values:  # vLLM's short name of a switch, not SGLang's of --ep-size
            option = dataclasses.replace(option, name="enable_expert_parallel")
        row = None if self._own_name(option.name) is not None else self._others.find(option.name)
        if row is None and option.name.startswith("no_") and self._theirs.get(option.name) is None:
            row = self._others.find(option.name.removeprefix("no_"))
            if row is None or not row.stands_for_ours:
                return [option], None
            return self._turned_off(option, row), row
        if row is None or not row.stands_for_ours or option.name in self._theirs:
            return [option], None
        return option.become(row.words(option.typed, self._without_units(option, option.values))), row

    def turned_off(self, option: Option) -> str | None:
        """Give the switch of ours that an option turns off as the opposite of another name of it; None: there is none.

        vLLM's --enable-prefix-caching is one: --no-enable-prefix-caching is another name of --disable-radix-cache.
        """
        name = option.name
        other = name.removeprefix("no_") if name.startswith("no_") else f"no_{name}"
        found = None if name in self._theirs else self._others.find(other)
        is_switch = found is not None and found.verdict == "alias" and isinstance(self.ours.get(found.here), bool)
        return found.here if found is not None and is_switch else None

    def may_set(self, row: ForeignFlag) -> dict[str, tuple[Any, ...]]:
        """Give the flags of ours that a row can set, each with the values that it can get; (): any."""
        if row.verdict == "alias":
            return {row.here: ()}
        found: dict[str, tuple[Any, ...]] = {}
        for words in (row.here, *(row.values or {}).values()):
            for option in read_options(words.split()):
                if "{}" in option.values:
                    found[option.name] = ()
                else:
                    value = self.own_value(option)
                    known = found.get(option.name)
                    if isinstance(value, OwnValue) and known != ():
                        found[option.name] = (*(known or ()), value.value)
        return found

    def names_of(self, option: Option) -> set[str]:
        """The flags of ours that an option is about, whatever its values."""
        row = self._others.find(option.typed_name)
        own = self.own_name(option)
        named = set() if row is None or not row.stands_for_ours else set(self.may_set(row))
        return named if own is None else {own}

    def own_name(self, option: Option) -> str | None:
        """The flag of ours that an option sets, without `no_`; None: it is none of ours."""
        name = self._own_name(option.name)
        return name if name is None or name in self.ours else name.removeprefix("no_")

    def stand_for(self, option: Option) -> list[Option]:
        """Give the options of ours that an option stands for; an option with a wrong value stands for itself."""
        try:
            return self.expand(option)[0]
        except ConfigError:
            return [option]

    def own_value(self, option: Option) -> OwnValue | str | None:
        """Give what an option sets, or else a warning that says why it sets nothing; None: it is no flag of ours.

        Raises:
            ConfigError: a value has the wrong type, or is not here.
        """
        name = self._own_name(option.name)
        if name is None:
            return None
        own = name if name in self.ours else name.removeprefix("no_")
        flag = self._theirs.get(own)
        values: Sequence[str] = option.values
        if flag is not None:
            if flag.means_nothing_here(values):
                return f"{option.typed} {values[0]} has no effect here: {flag.reason}"
            flag.check_planned(option.shown, values)
            values = [flag.value_aliases.get(value, value) for value in values]
        value = typed_value(option.typed, self._hints[own], self._without_units(option, values))
        return OwnValue(own, value if own == name else not value, option)

    def verdict(self, option: Option) -> str | None:
        """Give what is to be said of a flag that is none of ours; None: nothing.

        Raises:
            ConfigError: it is unknown or not accepted.
        """
        flag = self._theirs.get(option.name)
        if flag is not None:
            return flag.accept(option.typed, option.values)
        other = self._others.find(option.name)
        if other is not None:
            return other.accept(option.typed, option.values)
        positive = option.name.removeprefix("no_")
        if positive != option.name and not option.values:
            if positive in self._theirs:
                return self._theirs[positive].turn_off(option.typed)
            other = self._others.find(positive)
            if other is not None:
                return other.turn_off(option.typed)
        raise ConfigError(self._unknown(option))

    def _own_name(self, name: str) -> str | None:
        """The flag of ours that is meant, perhaps with `no_` in front."""
        found = self._theirs[name].name if name in self._theirs else name
        positive = found.removeprefix("no_")
        if found in self.ours or (positive in self.ours and isinstance(self.ours[positive], bool)):
            return found
        return None

    def _turned_off(self, option: Option, row: ForeignFlag) -> list[Option]:
        """What `--no-x` of a flag stands for that stands for ours: the same switch off, or what is done anyway."""
        if option.values:
            raise ConfigError(f"{option.typed} takes no value, got {' '.join(option.values)!r}")
        is_switch = row.verdict == "alias" and isinstance(self.ours.get(row.here), bool)
        return option.become(["--no-" + row.here.replace("_", "-")]) if is_switch else []

    def _without_units(self, option: Option, values: Sequence[str]) -> Sequence[str]:
        """Write 32k as 32000, if the option takes integers with units."""
        if option.name not in self._sizes or not any(value[-1:].isalpha() and value[:1].isdigit() for value in values):
            return values
        return [str(read_size(option.typed, value)) for value in values]

    def _unknown(self, option: Option) -> str:
        # under 0.8, what it finds is more often another switch than the same one with a mistake
        known = [*self.ours, *self._theirs, *self._others.names]
        close = difflib.get_close_matches(option.name, dict.fromkeys(known), n=3, cutoff=0.8)
        hint = f"; did you mean {' or '.join('--' + name.replace('_', '-') for name in close)}?" if close else ""
        return f"unknown flag {option.typed}{hint} (`palladio serve --help` lists all)"


def own_hints(configs: Sequence[type]) -> dict[str, Any]:
    """Give the annotation of each field of some configs."""
    return {name: hint for config in configs for name, hint in typing.get_type_hints(config).items()}
