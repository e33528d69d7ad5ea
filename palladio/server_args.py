"""The command line: the fields of nine small configs as one flat set of flags, beside SGLang's that are not ours.

Flags take dashes or underscores, `--flag value` or `--flag=value`; the last one wins.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from palladio.http.config import SECRETS, HttpConfig
from palladio.http.observability_config import ObservabilityConfig
from palladio.runtime.config import (
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    GrammarConfig,
    ModelSource,
    SchedulerConfig,
    SurvivalConfig,
)
from palladio.runtime.errors import ConfigError
from palladio.runtime.parallel_config import ParallelConfig
from palladio.sglang_flags import SglangFlag, load_sglang_flags

_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """Everything that a launch command can say."""

    source: ModelSource
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    execution: ExecutionConfig = ExecutionConfig()
    parallel: ParallelConfig = ParallelConfig()
    survival: SurvivalConfig = SurvivalConfig()
    grammar: GrammarConfig = GrammarConfig()
    http: HttpConfig = HttpConfig()
    observability: ObservabilityConfig = ObservabilityConfig()

    def engine_config(self) -> EngineConfig:
        """Raises:
        ConfigError: a value is out of range.
        """
        return EngineConfig(
            source=self.source,
            cache=self.cache,
            scheduler=self.scheduler,
            execution=self.execution,
            parallel=self.parallel,
            survival=self.survival,
            grammar=self.grammar,
        )

    def flags(self) -> dict[str, Any]:
        """Flag name → value, for all of our flags."""
        return self.engine_config().flags() | vars(self.http) | vars(self.observability)

    def describe(self) -> str:
        """The boot line: SGLang's flags in its order, the ones that are not ours as they stand, then our own."""
        ours = self.flags()
        shown = {flag.name: ours.pop(flag.name, flag.value) for flag in load_sglang_flags()} | ours
        if shown["tokenizer_path"] is None:
            shown["tokenizer_path"] = shown["model_path"]
        names = shown["served_model_name"] or (shown["model_path"],)
        shown["served_model_name"] = names[0] if len(names) == 1 else names
        shown |= {name: "***" for name in SECRETS if shown[name] is not None}
        return f"ServerArgs({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclasses.dataclass(frozen=True)
class ParsedCommand:
    """A launch command, understood.

    Attributes:
        warnings: one line for each flag that was accepted and does nothing.
    """

    args: ServerArgs
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Option:
    """One option as typed: the name, normalized, and the words that follow it."""

    typed: str
    name: str
    values: list[str]


def parse_server_args(argv: Sequence[str]) -> ParsedCommand:
    """Parses a launch command's flags.

    Raises:
        ConfigError: an unknown or unsupported flag, or a value that does not fit.
        SystemExit: after printing: 0 for --help, 2 for a value of the wrong type.
    """
    ours = own_flags()
    theirs = {name: flag for flag in load_sglang_flags() for name in (flag.name, *flag.aliases)}
    kept: dict[str, list[str]] = {}
    warnings: list[str] = []
    for option in _options(argv):
        name = theirs[option.name].name if option.name in theirs else option.name
        positive = name.removeprefix("no_")
        if name in ours:
            foreign = theirs.get(name)
            if foreign is not None and option.values and set(option.values) <= set(foreign.foreign_values):
                warnings.append(f"{foreign.option} {option.values[0]} has no effect on XLA: {foreign.reason}")
            else:
                kept[name] = _tyro_words(name, option.values)
        elif positive in ours and isinstance(ours[positive], bool):
            kept[positive] = _tyro_words(name, option.values)
        elif name in ("help", "h"):
            kept["help"] = ["--help"]
        elif name in theirs:
            warning = theirs[name].accept(option.values)
            if warning is not None and warning not in warnings:
                warnings.append(warning)
        else:
            raise ConfigError(_unknown(option, ours, theirs))
    if "model_path" not in kept and "help" not in kept:
        raise ConfigError("--model-path is required: a Hugging Face model directory or hub id")
    args = tyro.cli(
        ServerArgs,
        prog="palladio serve",
        description="Serves a model on OpenAI-compatible routes. SGLang's flags are listed in docs/flags.md.",
        args=[word for words in kept.values() for word in words],
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return ParsedCommand(args, tuple(warnings))


def names_model(argv: Sequence[str]) -> bool:
    """Whether a launch command says which model to serve, or only asks for help."""
    return any(option.name in ("model_path", "model", "help", "h") for option in _options(argv))


def own_flags() -> dict[str, Any]:
    """Our flags: name → default. `model_path` has none, so it is shown as None."""
    return ServerArgs(source=ModelSource(model_path="")).flags() | {"model_path": None}


def _options(argv: Sequence[str]) -> list[_Option]:
    options: list[_Option] = []
    for word in argv:
        if word.startswith("-") and not _NEGATIVE_NUMBER.match(word):
            typed, has_value, value = word.partition("=")
            options.append(_Option(typed, typed.lstrip("-").replace("-", "_"), [value] if has_value else []))
        elif options:
            options[-1].values.append(word)
        else:
            raise ConfigError(f"unexpected argument {word!r}: every argument is a flag, such as --model-path {word}")
    return options


def _tyro_words(name: str, values: Sequence[str]) -> list[str]:
    option = "--" + name.replace("_", "-")
    return [f"{option}={values[0]}"] if len(values) == 1 else [option, *values]


def _unknown(option: _Option, ours: Mapping[str, Any], theirs: Mapping[str, SglangFlag]) -> str:
    close = difflib.get_close_matches(option.name, {**ours, **theirs}, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join('--' + name.replace('_', '-') for name in close)}?" if close else ""
    return f"unknown flag {option.typed}{hint} (`palladio serve --help` lists all)"
