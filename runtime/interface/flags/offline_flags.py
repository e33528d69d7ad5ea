"""The keywords of `Engine`: its own flags, and the verdicts of the command line on all others, by the same tables."""

import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlag, ForeignFlags, load_foreign_flags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags
from palladio.runtime.interface.flags.typed_values import typed_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineFlags:
    """The keywords of an `Engine`, understood.

    Attributes:
        log_level: of the process's log, as logging names it; None: leave the log alone.
        warnings: one line for each keyword that was accepted and does nothing.
    """

    config: EngineConfig
    log_level: str | None
    warnings: tuple[str, ...]

    @classmethod
    def read(cls, keywords: Mapping[str, Any]) -> Self:
        """Read the keywords of `Engine`.

        Args:
            keywords: flags by name, with underscores; None stands for "not given".

        Raises:
            ConfigError: an unknown or unsupported flag, the same one under two names, or a bad value.
        """
        ours = EngineConfig(source=ModelSource(model_path="")).flags()
        sglang = {name: flag for flag in load_sglang_flags() for name in (flag.name, *flag.aliases)}
        others = ForeignFlags(load_foreign_flags())
        hints = EngineConfig.hints()
        given: dict[str, Any] = {}
        typed: dict[str, str] = {}
        warnings: list[str | None] = []
        for keyword, value in keywords.items():
            if value is None or keyword == "log_level":
                continue
            flag, other = sglang.get(keyword), others.find(keyword)
            name = keyword if flag is None else flag.name
            if name in ours:
                values = value if isinstance(value, list | tuple) else (value,)
                if flag is not None:
                    flag.check_planned(f"{keyword}={value!r}", values)
                found = {name: value}
                if flag is not None and flag.means_nothing_here(values):
                    found = {name: None}
                    warnings.append(f"{keyword}={value!r} has no effect here: {flag.reason}")
                elif flag is not None and isinstance(value, str):
                    found = {name: flag.value_aliases.get(value, value)}
            elif name in sglang:
                warnings.append(sglang[name].accept_keyword(keyword, value))
                continue
            elif other is None:
                raise ConfigError(_unknown(keyword, [*ours, *sglang, *others.names]))
            elif other.stands_for_ours:
                found = _sets(other, keyword, value, hints)
                warnings += [f"{keyword} sets {', '.join(found)}: {other.note}"] if other.note and found else []
            else:
                warnings.append(other.accept_keyword(keyword, value))
                continue
            for one, new in found.items():
                if one in typed:
                    raise ConfigError(f"{typed[one]} and {keyword} are the same option: give one of them")
                typed[one] = keyword
                given |= {} if new is None else {one: new}
        return cls(
            config=EngineConfig.from_flags(given),
            log_level=_log_level(keywords.get("log_level")),
            warnings=tuple(warning for warning in warnings if warning is not None),
        )


def _sets(flag: ForeignFlag, keyword: str, value: object, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Give the options of ours that a keyword stands for, with their values.

    Raises:
        ConfigError: it stands for an option of the HTTP server alone, or the value is not allowed.
    """
    if value is False:
        return {flag.here: False} if hints.get(flag.here) is bool else {}
    if flag.computed:
        raise ConfigError(f"{keyword}: give ep_size, the number of parts that have experts of their own")
    text = value if isinstance(value, str) else str(value)
    if flag.verdict == "alias" and text not in (flag.values or ()):
        found = {flag.here: value}
    else:
        found = _read(flag.words(keyword, [] if value is True else [text]), keyword, hints)
    server = [name for name in found if name not in hints]
    if server:
        raise ConfigError(f"{keyword} is not supported offline: it sets --{server[0].replace('_', '-')} of the server")
    return found


def _read(words: Sequence[str], keyword: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Read words of ours, in which a flag has one value or none."""
    found: dict[str, Any] = {}
    for position, word in enumerate(words):
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            values = [after for after in words[position + 1 : position + 2] if not after.startswith("--")]
            found[name] = typed_value(keyword, hints[name], values) if name in hints else None
    return found


def _unknown(keyword: str, known: list[str]) -> str:
    close = difflib.get_close_matches(keyword, dict.fromkeys(known), n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/flags.md lists all"
    return f"unknown engine option {keyword!r}; {hint}"


def _log_level(level: object) -> str | None:
    names = [name.lower() for name in logging.getLevelNamesMapping()]
    if level is None or (isinstance(level, str) and level.lower() in names):
        return level
    raise ConfigError(f"log_level must be one of {', '.join(names)}, got {level!r}")
