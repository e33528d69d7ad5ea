"""The command line: the fields of ten small configs as one flat set of flags, plus the flags of other servers.

Flags take dashes or underscores, `--flag value` or `--flag=value`; the last one wins. Two names of one flag must agree.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from palladio.flags.config_file import read_config_file
from palladio.flags.default_model import DEFAULT_MODEL_ALIASES, DEFAULT_MODEL_NAME, default_model_path
from palladio.flags.flag_table import FlagTable, OwnValue, own_hints
from palladio.flags.given_flags import GivenFlags
from palladio.flags.options import Option, read_options
from palladio.http.settings.http_config import SECRETS, HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.config.cache_config import CacheConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig
from palladio.runtime.interface.config.survival_config import SurvivalConfig
from palladio.runtime.interface.errors import ConfigError, FlagErrors
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

_DESCRIPTION = """Serve a model with OpenAI- and Anthropic-compatible routes. Flags of other servers: docs/flags.md.

Examples: `palladio serve` (the embedded model); `palladio serve smollm2` (a published one with a short name);
`palladio serve Qwen/Qwen3-8B` (downloaded first, see `palladio pull`); `palladio serve /models/mine --port 31000
--tp-size 4`; `palladio serve --config serve.yaml` (flags from a file, as `name: value`; the command line wins).

Exit codes: 0 after a signal, 1 when the engine could not start or died, 2 for a wrong flag or checkpoint,
75 when another process has the device.
"""


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
        warnings: one line for each flag that was accepted and does nothing, or not quite the same.
        notes: flags of ours that were typed under other names, or stand elsewhere than on the command line: name → what
            an error is to say of it.
        asks_pictures: the flag, as typed, that asks to read pictures; "": none.
        given: names of our flags that the command sets, under whatever names.
    """

    args: ServerArgs
    warnings: tuple[str, ...]
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    asks_pictures: str = ""
    given: frozenset[str] = frozenset()

    def explained(self, error: ConfigError) -> ConfigError:
        """Give an error that says how a flag was typed and where it stands, if that is not as the error names it."""
        return _explained(error, self.notes)

    def check(self, args: ServerArgs) -> None:
        """Check the flags beside each other.

        Raises:
            ConfigError: values are out of range, or do not fit together; there is one sentence for each mistake.
        """
        try:
            args.engine_config()
        except ConfigError:
            values = {name: value for group in vars(args).values() for name, value in vars(group).items()}
            raise FlagErrors.join([self.explained(error) for error in find_mistakes(values)]) from None


def parse_server_args(
    argv: Sequence[str], variables: Sequence[Option] = (), errors: Sequence[ConfigError] = ()
) -> ParsedCommand:
    """Parse a launch command's flags; a word that is none, first or behind `--flag=value`, is the model.

    Args:
        variables: options that variables of the environment stand for; any other gives them up.
        errors: what is wrong with the environment, to be told with what is wrong here.

    Raises:
        ConfigError: unknown or unsupported flags, or values that do not fit. There is one sentence for each mistake.
        SystemExit: after printing --help.
    """
    options = _all_options(argv)
    if any(option.name in ("help", "h") for option in options):
        _print_help()
    command = GivenFlags(flag_table())
    command.take([*variables, *options])
    parsed = build_command(command, errors)
    return dataclasses.replace(parsed, args=_without_alias(parsed.args))


def build_command(command: GivenFlags, errors: Sequence[ConfigError] = ()) -> ParsedCommand:
    """Build the configs of a command, without a look at files.

    Args:
        errors: what else is wrong.

    Raises:
        ConfigError: there are errors, the command has some, or its values do not fit; there is one sentence for each.
    """
    found, notes = [*errors, *command.errors], _notes_on(command)
    values = {name: value.value for name, value in command.values.items()}
    if not found:
        if "model_path" not in values:
            raise ConfigError("--model-path is required: a Hugging Face model directory or hub id")
        try:
            args = _build(values)
        except ConfigError:
            pass  # it is found again, with all others
        else:
            return ParsedCommand(args, tuple(command.warnings), notes, command.asks_pictures, frozenset(values))
    found += [_explained(error, notes) for error in find_mistakes({"model_path": "m"} | values, command.unknown)]
    raise FlagErrors.join(found)


def find_mistakes(values: Mapping[str, Any], unknown: Collection[str] = ()) -> list[ConfigError]:
    """Find all mistakes of a command's values: those that one names are left out to find the next.

    Args:
        values: of the configs' fields, `model_path` among them.
        unknown: fields whose values are not known; a mistake that names one of them does not count.
    """
    left, found = dict(values), []
    while True:
        try:
            _build(left).engine_config()
        except ConfigError as error:
            named = {name for name in {*left, *unknown} - {"model_path"} if _names(error, name)}
            if not named & set(unknown):
                found.append(error)
            if not named & left.keys():
                return found
            left = {name: value for name, value in left.items() if name not in named}
        else:
            return found


def _all_options(argv: Sequence[str]) -> list[Option]:
    """Give the options of a command, and of the file that its --config names."""
    options = read_options(argv)
    files = [option for option in options if option.name == "config"]
    if not files:
        return options
    if len(files) > 1 or len(files[0].values) != 1:
        raise ConfigError("--config takes one YAML file, and is given once")
    return [*read_config_file(files[0].values[0]), *(option for option in options if option.name != "config")]


def _build(values: Mapping[str, Any]) -> ServerArgs:
    """Build the configs from values of their fields."""
    groups = {}
    for group in dataclasses.fields(ServerArgs):
        kind: Any = group.type
        names = {field.name for field in dataclasses.fields(kind)}
        groups[group.name] = kind(**{name: value for name, value in values.items() if name in names})
    return ServerArgs(**groups)


def _print_help() -> None:
    tyro.cli(
        ServerArgs,
        default=ServerArgs(source=ModelSource(model_path="default")),
        prog="palladio serve",
        description=_DESCRIPTION,
        args=["--help"],
        config=(tyro.conf.OmitArgPrefixes,),
    )


def flag_table() -> FlagTable:
    """Make the table of all flags that a launch command may have."""
    configs = [config for config in typing.get_type_hints(ServerArgs).values() if isinstance(config, type)]
    return FlagTable(own_flags(), own_hints(configs))


def _notes_on(command: GivenFlags) -> dict[str, str]:
    """Give what an error is to say of flags that are typed under other names or elsewhere: name of ours → note."""
    return {value.name: note for value in command.values.values() if (note := _note(value))}


def _note(value: OwnValue) -> str:
    flag, option = "--" + value.name.replace("_", "-"), value.option
    if option.typed.startswith("-") and value.typed_name != value.name:
        return f"{option.typed} is an alias of {flag}" + (f", in {option.place}" if option.place else "")
    return f"{flag} is set by {option.place}" if option.place else ""


def _explained(error: ConfigError, notes: Mapping[str, str]) -> ConfigError:
    said = [note for name, note in notes.items() if _names(error, name)]
    return ConfigError(f"{error} ({'; '.join(said)})") if said else error


def _names(error: ConfigError, name: str) -> bool:
    return re.search(rf"--{name.replace('_', '-')}(?![\w-])", str(error)) is not None


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


def names_model(argv: Sequence[str]) -> bool:
    """Whether a launch command says which model to serve, or only asks for help.

    Raises:
        ConfigError: it does not, but a flag with several values ends with what seems to be the model.
    """
    options = _all_options(argv)
    if any(option.name in ("help", "h") for option in options):
        return True
    table = flag_table()
    if any(one.name in ("model_path", "model") for option in options for one in table.stand_for(option)):
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
