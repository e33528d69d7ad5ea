"""What a launch command's options set, say and get wrong, taken together."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from palladio.flags.flag_table import FlagTable, OwnValue
from palladio.flags.options import Option
from palladio.runtime.interface.errors import ConfigError, UnsupportedFlagError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlag

_ONCE: Final = frozenset({"api_key", "admin_api_key"})  # of others the last one wins; no key is to be lost in silence
_PICTURES: Final = frozenset({"enable_multimodal", "multimodal"})


class _Default(NamedTuple):
    """An option that asks for the default of a flag of ours.

    Attributes:
        option: as typed.
        name: the flag of ours.
        against: the values that contradict it; (): any but the default.
        is_firm: whether such a value beside it is a mistake.
    """

    option: Option
    name: str
    against: tuple[Any, ...]
    is_firm: bool


class GivenFlags:
    """Takes the options of a command, one after the other, and collects what they set and what is wrong.

    Attributes:
        values: flags of ours that are set, by name.
        warnings: one line for each flag that does nothing, or not quite the same.
        without: options that ask for what is done anyway.
        errors: what is wrong, one for each option.
        asks_pictures: the flag, as typed, that asks to read pictures; "": none.
        unknown: flags of ours that an option sets in a wrong way.
    """

    def __init__(self, table: FlagTable) -> None:
        self._table = table
        self.values: dict[str, OwnValue] = {}
        self.warnings: list[str] = []
        self.without: list[Option] = []
        self.errors: list[ConfigError] = []
        self.asks_pictures = ""
        self.unknown: set[str] = set()
        self._defaults: list[_Default] = []
        self._expert_parallel: Option | None = None

    def take(self, options: Sequence[Option]) -> None:
        """Take options, those of a lower rank first."""
        ordered = sorted(options, key=lambda option: option.rank)
        last = {option.spelling: option for option in ordered}
        for option in ordered:
            winner = last[option.spelling]
            is_last = winner is option or (winner.rank == option.rank and option.typed_name in _ONCE)
            try:
                self._take(option) if is_last else self._check(option)
            except ConfigError as error:
                if is_last or not isinstance(error, UnsupportedFlagError):
                    self.errors.append(_placed(error, option.place))
                    self.unknown |= self._table.names_of(option)
        self._settle_defaults()
        if self._expert_parallel is not None:
            self._share_experts(self._expert_parallel)

    def _check(self, option: Option) -> None:
        """Check an option that gives way to a later one of the same name.

        Raises:
            ConfigError: its value is wrong.
        """
        for one in self._table.expand(option)[0]:
            if self._table.own_value(one) is None:
                self._table.verdict(one)

    def _take(self, option: Option) -> None:
        given, row = self._table.expand(option)
        if row is not None and not row.computed:
            self._ask_defaults(option, row, given)
        if row is not None and row.computed:
            self._expert_parallel = None if option.name.startswith("no_") else option
        if not given and not (row is not None and row.computed):
            self.without.append(option)
        if row is not None and row.note and given:
            self._warn(f"{option.typed} sets {' '.join(_words_of(given))}: {row.note}")
        for one in given:
            value = self._table.own_value(one)
            if isinstance(value, OwnValue):
                self._set(dataclasses.replace(value, replaces=() if row is None else row.replaces))
                continue
            name, opposite = self._table.own_name(one), self._table.turned_off(one)
            if name is not None:
                self._defaults.append(_Default(option, name, (), is_firm=False))
            elif opposite is not None:
                self._defaults.append(_Default(option, opposite, (), is_firm=True))
            warning = self._table.verdict(one) if value is None else value
            if warning is not None:
                self._warn(warning)
            else:
                self.without.append(one)
            if one.name in _PICTURES and warning is not None:
                self.asks_pictures = one.typed

    def _ask_defaults(self, option: Option, row: ForeignFlag, given: Sequence[Option]) -> None:
        """Keep which flags an option leaves at their defaults, though its row can set them."""
        if len(option.values) == 1 and option.values[0] in row.leaves_open:
            return
        for name, values in self._table.may_set(row).items():
            if name not in {self._table.own_name(one) for one in given}:
                self._defaults.append(_Default(option, name, values, is_firm=not given))

    def _settle_defaults(self) -> None:
        """Drop values of a lower rank than an option that asks for the default; one of the same rank is a mistake."""
        for default in self._defaults:
            value = self.values.get(default.name)
            if value is None:
                continue
            usual = self._table.ours[default.name]
            if value.value not in default.against if default.against else value.value == usual:
                continue
            if value.option.rank < default.option.rank:
                del self.values[default.name]
            elif value.option.rank == default.option.rank and default.is_firm:
                flag = "--" + default.name.replace("_", "-")
                message = (
                    f"{value.option.shown} and {default.option.shown} give {flag} different values: leave one of them "
                    "out"
                )
                self.errors.append(_placed(ConfigError(message), default.option.place))

    def _warn(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)

    def _set(self, new: OwnValue) -> None:
        """Keep a value, in the place of one of a lower rank or of an earlier one under the same name.

        Raises:
            ConfigError: another name of the flag has another value.
        """
        old = self.values.get(new.name)
        if old is None or old.option.rank < new.option.rank or old.value == new.value:
            self.values[new.name] = new
        elif old.typed_name == new.typed_name:
            if new.name in _ONCE:
                raise ConfigError(f"{new.option.typed} is given more than once: write all keys after one of them")
            self.values[new.name] = new
        elif str(old.value) in new.replaces:
            self.values[new.name] = new
        elif str(new.value) not in old.replaces:
            flag = "--" + new.name.replace("_", "-")
            raise ConfigError(
                f"{old.option.shown} and {new.option.shown} give {flag} different values: leave one of them out"
            )

    def _share_experts(self, option: Option) -> None:
        """Set what vLLM's switch asks for: each device of all data-parallel ranks has experts of its own."""
        given = self.values.get("ep_size")
        if given is not None and given.option.rank > option.rank:
            return
        tp_size, dp_size = (self.values[name].value if name in self.values else 1 for name in ("tp_size", "dp_size"))
        wanted: dict[str, Any] = {"ep_size": tp_size}
        if dp_size > 1 and "enable_dp_attention" not in self.values:
            wanted = {"tp_size": tp_size * dp_size, "enable_dp_attention": True, "ep_size": tp_size * dp_size}
            shown = f"--tp-size {tp_size * dp_size} --dp-size {dp_size} --enable-dp-attention"
            self._warn(f"{option.typed} sets {shown} --ep-size {tp_size * dp_size}: all ranks share the experts")
        if given is not None and given.option.rank == option.rank and given.value != wanted["ep_size"]:
            self.errors.append(
                ConfigError(
                    f"{given.option.shown} and {option.typed} (--ep-size {wanted['ep_size']}) contradict each other"
                )
            )
            return
        for name, value in wanted.items():
            self.values[name] = OwnValue(name, value, option)


def _placed(error: ConfigError, place: str) -> ConfigError:
    """Give the error with the place of its option, if that is not the command line."""
    if not place:
        return error
    message = f"{place}: {error}"
    if isinstance(error, UnsupportedFlagError):
        return UnsupportedFlagError(message, flag=error.flag, feature=error.feature)
    return ConfigError(message)


def _words_of(options: Sequence[Option]) -> list[str]:
    return [word for option in options for word in ("--" + option.name.replace("_", "-"), *option.values)]
