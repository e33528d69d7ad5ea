"""The keywords of `Engine`: its own flags, and the verdicts of the command line on all others, by the same tables."""

import dataclasses
import difflib
import logging
from collections.abc import Mapping
from typing import Any, Self

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlags, load_foreign_flags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags


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
        given: dict[str, Any] = {}
        typed: dict[str, str] = {}
        warnings: list[str | None] = []
        for keyword, value in keywords.items():
            if value is None or keyword == "log_level":
                continue
            flag, other = sglang.get(keyword), others.find(keyword)
            name = keyword if flag is None else flag.name
            if name not in ours and other is not None and other.verdict == "alias":
                name = other.here
            if name in ours:
                if name in typed:
                    raise ConfigError(f"{typed[name]} and {keyword} are the same option: give one of them")
                typed[name] = keyword
                values = value if isinstance(value, list | tuple) else (value,)
                if flag is not None:
                    flag.check_planned(f"{keyword}={value!r}", values)
                if flag is not None and flag.means_nothing_here(values):
                    warnings.append(f"{keyword}={value!r} has no effect here: {flag.reason}")
                else:
                    given[name] = value
            elif name in sglang:
                warnings.append(sglang[name].accept_keyword(keyword, value))
            elif other is not None and other.verdict != "alias":
                warnings.append(other.accept_keyword(keyword, value))
            else:
                raise ConfigError(_unknown(keyword, [*ours, *sglang, *others.names]))
        return cls(
            config=EngineConfig.from_flags(given),
            log_level=_log_level(keywords.get("log_level")),
            warnings=tuple(warning for warning in warnings if warning is not None),
        )


def _unknown(keyword: str, known: list[str]) -> str:
    close = difflib.get_close_matches(keyword, dict.fromkeys(known), n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/flags.md lists all"
    return f"unknown engine option {keyword!r}; {hint}"


def _log_level(level: object) -> str | None:
    names = [name.lower() for name in logging.getLevelNamesMapping()]
    if level is None or (isinstance(level, str) and level.lower() in names):
        return level
    raise ConfigError(f"log_level must be one of {', '.join(names)}, got {level!r}")
