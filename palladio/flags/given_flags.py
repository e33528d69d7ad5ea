"""What a launch command's options set, say and get wrong, taken together."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from palladio.flags.flag_table import FlagTable, OwnValue
from palladio.flags.options import Option
from palladio.runtime.interface.errors import ConfigError, UnsupportedFlagError

_ONCE: Final = frozenset({"api_key", "admin_api_key"})  # of others the last one wins; no key is to be lost in silence
_PICTURES: Final = frozenset({"enable_multimodal", "multimodal"})


class GivenFlags:
    """Takes the options of a command, one after the other, and collects what they set and what is wrong.

    Attributes:
        values: flags of ours that are set, by name.
        warnings: one line for each flag that does nothing, or not quite the same.
        without: options that ask for what is done anyway.
        errors: what is wrong, one for each option.
        asks_pictures: the flag, as typed, that asks to read pictures; "": none.
    """

    def __init__(self, table: FlagTable) -> None:
        self._table = table
        self.values: dict[str, OwnValue] = {}
        self.warnings: list[str] = []
        self.without: list[Option] = []
        self.errors: list[ConfigError] = []
        self.asks_pictures = ""
        self._expert_parallel: Option | None = None

    def take(self, options: Sequence[Option]) -> None:
        """Take options, those of a lower rank first."""
        for option in sorted(options, key=lambda option: option.rank):
            try:
                self._take(option)
            except ConfigError as error:
                self.errors.append(_placed(error, option.place))
        if self._expert_parallel is not None:
            self._share_experts(self._expert_parallel)

    def _take(self, option: Option) -> None:
        given, row = self._table.expand(option)
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
            warning = self._table.verdict(one) if value is None else value
            if warning is not None:
                self._warn(warning)
            else:
                self.without.append(one)
            if one.name in _PICTURES and warning is not None:
                self.asks_pictures = one.typed

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
        tp_size, dp_size = (self.values[name].value if name in self.values else 1 for name in ("tp_size", "dp_size"))
        wanted: dict[str, Any] = {"ep_size": tp_size}
        if dp_size > 1 and "enable_dp_attention" not in self.values:
            wanted = {"tp_size": tp_size * dp_size, "enable_dp_attention": True, "ep_size": tp_size * dp_size}
            shown = f"--tp-size {tp_size * dp_size} --dp-size {dp_size} --enable-dp-attention"
            self._warn(f"{option.typed} sets {shown} --ep-size {tp_size * dp_size}: all ranks share the experts")
        given = self.values.get("ep_size")
        if given is not None and given.value != wanted["ep_size"]:
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
