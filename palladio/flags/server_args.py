"""The command line: the fields of ten small configs as one flat set of flags, plus the flags of other servers.

Flags take dashes or underscores, `--flag value` or `--flag=value`; the last one wins.
"""

import dataclasses
import difflib
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from palladio.flags.default_model import DEFAULT_MODEL_ALIASES, DEFAULT_MODEL_NAME, default_model_path
from palladio.http.settings.http_config import SECRETS, HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.config.cache_config import CacheConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.config.field_checks import check_choice
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig
from palladio.runtime.interface.config.survival_config import SurvivalConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlags, load_foreign_flags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

_DESCRIPTION = """Serve a model with OpenAI- and Anthropic-compatible routes. Flags of other servers: docs/flags.md.

Examples: `palladio serve` (the embedded model); `palladio serve smollm2` (a published one with a short name);
`palladio serve Qwen/Qwen3-8B` (downloaded first, see `palladio pull`); `palladio serve /models/mine --port 31000
--tp-size 4`.

Exit codes: 0 after a signal, 1 when the engine could not start or died, 2 for a wrong flag or checkpoint.
"""
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")
_ONCE = frozenset({"api_key", "admin_api_key"})  # of others the last one wins; no key is to be lost in silence


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """All flags of a launch command."""

    source: ModelSource
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    execution: ExecutionConfig = ExecutionConfig()
    parallel: ParallelConfig = ParallelConfig()
    survival: SurvivalConfig = SurvivalConfig()
    grammar: GrammarConfig = GrammarConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()
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
            speculative=self.speculative,
        )

    def flags(self) -> dict[str, Any]:
        """Flag name → value, for all of our flags."""
        return self.engine_config().flags() | vars(self.http) | vars(self.observability)

    def describe(self) -> str:
        """The boot line: SGLang's flags in its order, then our own. Flags that are not ours show what is true here."""
        ours = self.flags()
        shown = {flag.name: ours.pop(flag.name, flag.value) for flag in load_sglang_flags()} | ours
        if shown["tokenizer_path"] is None:
            shown["tokenizer_path"] = shown["model_path"]
        names = shown["served_model_name"] or (shown["model_path"],)
        shown["served_model_name"] = names[0] if len(names) == 1 else names
        public = self.http.public()
        shown |= {name: public[name] for name in SECRETS}
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


class _FlagTable:
    """All flags that are known: ours, SGLang's, and those of other servers."""

    def __init__(self) -> None:
        self.ours = own_flags()
        configs = typing.get_type_hints(ServerArgs).values()
        self.hints = {name: hint for config in configs for name, hint in typing.get_type_hints(config).items()}
        self.theirs = {name: flag for flag in load_sglang_flags() for name in (flag.name, *flag.aliases)}
        self.others = ForeignFlags(load_foreign_flags())

    def own_name(self, option: _Option) -> str | None:
        """The flag of ours that is meant; None: none of them."""
        name = self.theirs[option.name].name if option.name in self.theirs else option.name
        other = None if name in self.ours else self.others.find(name)
        if other is not None and other.verdict == "alias":
            return other.here
        positive = name.removeprefix("no_")
        if name in self.ours or (positive in self.ours and isinstance(self.ours[positive], bool)):
            return name
        return None

    def foreign_value(self, name: str, option: _Option) -> str | None:
        """The warning, if the value of this flag of ours only means something in SGLang."""
        flag = self.theirs.get(name)
        if flag is None or not flag.means_nothing_here(option.values):
            return None
        return f"{option.typed} {option.values[0]} has no effect here: {flag.reason}"

    def check_value(self, name: str, option: _Option) -> None:
        """Check a flag that takes one of several names.

        Raises:
            ConfigError: it is none of them.
        """
        flag = self.theirs.get(name)
        if flag is not None:
            flag.check_planned(" ".join((option.typed, *option.values)), option.values)
        if len(option.values) == 1 and name in self.hints:
            check_choice(option.typed, self.hints[name], option.values[0])

    def judge(self, option: _Option) -> str | None:
        """What is to be said of a flag that is none of ours; None: nothing.

        Raises:
            ConfigError: it is unknown or not accepted.
        """
        if option.name in self.theirs:
            return self.theirs[option.name].accept(option.typed, option.values)
        other = self.others.find(option.name)
        if other is None:
            raise ConfigError(self._unknown(option))
        return other.accept(option.typed, option.values)

    def _unknown(self, option: _Option) -> str:
        # under 0.8, what it finds is more often another switch than the same one with a mistake
        known = [*self.ours, *self.theirs, *self.others.names]
        close = difflib.get_close_matches(option.name, dict.fromkeys(known), n=3, cutoff=0.8)
        hint = f"; did you mean {' or '.join('--' + name.replace('_', '-') for name in close)}?" if close else ""
        return f"unknown flag {option.typed}{hint} (`palladio serve --help` lists all)"


def parse_server_args(argv: Sequence[str]) -> ParsedCommand:
    """Parses a launch command's flags; a word that is none, first or behind `--flag=value`, is the model.

    Raises:
        ConfigError: an unknown or unsupported flag, or a value that does not fit.
        SystemExit: after printing: 0 for --help, 2 for a value of the wrong type.
    """
    table = _FlagTable()
    kept: dict[str, list[str]] = {}
    typed: dict[str, str] = {}
    warnings: list[str] = []
    for option in _options(argv):
        if option.name in ("help", "h"):
            kept["help"] = ["--help"]
            continue
        name = table.own_name(option)
        warning = table.judge(option) if name is None else table.foreign_value(name, option)
        if warning is not None and warning not in warnings:
            warnings.append(warning)
        if name is None or warning is not None:
            continue
        table.check_value(name, option)
        own = name if name in table.ours else name.removeprefix("no_")
        if own in _ONCE and own in kept:
            raise ConfigError(f"{option.typed} is given more than once: write all keys after one of them")
        kept[own], typed[own] = _tyro_words(name, option.values), option.typed
    if "model_path" not in kept and "help" not in kept:
        raise ConfigError("--model-path is required: a Hugging Face model directory or hub id")
    try:
        args = tyro.cli(
            ServerArgs,
            default=ServerArgs(source=ModelSource(model_path="default")),  # for the help: above, it is given or refused
            prog="palladio serve",
            description=_DESCRIPTION,
            args=[word for words in kept.values() for word in words],
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except SystemExit as end:
        if end.code:  # tyro has named our flags, and the user may have typed others
            _tell_other_names(typed)
        raise
    return ParsedCommand(_without_alias(args), tuple(warnings))


def _without_alias(args: ServerArgs) -> ServerArgs:
    """With the embedded model's directory in place of one of its names, unless a directory here is called so.

    Raises:
        ConfigError: it is nearly one of its names.
    """
    name = args.source.model_path
    if "/" in name or not name or Path(name).exists():
        return args
    if name not in DEFAULT_MODEL_ALIASES:
        close = difflib.get_close_matches(name.lower(), DEFAULT_MODEL_ALIASES, n=1, cutoff=0.8)
        if close:
            raise ConfigError(f"--model-path {name}: no such directory; did you mean {close[0]} (the embedded model)?")
        return args
    source = dataclasses.replace(args.source, model_path=str(default_model_path()))
    names = args.http.served_model_name or (DEFAULT_MODEL_NAME,)
    return dataclasses.replace(args, source=source, http=dataclasses.replace(args.http, served_model_name=names))


def _tell_other_names(typed: Mapping[str, str]) -> None:
    for name, word in typed.items():
        if word.startswith("-") and word.lstrip("-").replace("-", "_").removeprefix("no_") != name:
            print(f"{word} is an alias of --{name.replace('_', '-')}", file=sys.stderr)


def names_model(argv: Sequence[str]) -> bool:
    """Whether a launch command says which model to serve, or only asks for help.

    Raises:
        ConfigError: it does not, but a flag with several values ends with what seems to be the model.
    """
    table = _FlagTable()
    options = _options(argv)
    if any(option.name in ("help", "h") or table.own_name(option) == "model_path" for option in options):
        return True
    for option in options:
        if len(option.values) > 1 and Path(option.values[-1]).is_dir():
            raise ConfigError(
                f"{option.values[-1]!r} was parsed as a value of {option.typed}; if it is the model, put it first or "
                "after --model-path"
            )
    return False


def own_flags() -> dict[str, Any]:
    """Our flags: name → default. `model_path` has none, so it is shown as None."""
    return ServerArgs(source=ModelSource(model_path="")).flags() | {"model_path": None}


def _options(argv: Sequence[str]) -> list[_Option]:
    options: list[_Option] = []
    more: list[str] | None = None  # values of the last option; None: its value stands behind "="
    model: str | None = None
    for word in argv:
        if word.startswith("-") and not _NEGATIVE_NUMBER.match(word):
            typed, has_value, value = word.partition("=")
            options.append(_Option(typed, typed.lstrip("-").replace("-", "_"), [value] if has_value else []))
            more = None if has_value else options[-1].values
        elif more is not None:
            more.append(word)
        elif model is None:
            model = word
        else:
            raise ConfigError(
                f"unexpected argument {word!r}: the model is already {model!r}; everything else must be a flag"
            )
    if model is None:
        return options
    for option in options:
        if option.name in ("model_path", "model", "model_id"):
            raise ConfigError(f"the model is given twice: as {model!r} and with {option.typed}; remove one of them")
    return [_Option(model, "model_path", [model]), *options]


def _tyro_words(name: str, values: Sequence[str]) -> list[str]:
    option = "--" + name.replace("_", "-")
    return [f"{option}={values[0]}"] if len(values) == 1 else [option, *values]
