"""`palladio migrate`: another server's launch command, as the command that does the same here."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from palladio.cli.parsing import make_parser
from palladio.flags.flag_table import OwnValue
from palladio.flags.given_flags import GivenFlags
from palladio.flags.options import Option, read_options
from palladio.flags.peer_environment import PeerVariables, load_peer_variables, read_peer_environment
from palladio.flags.server_args import build_command, flag_table
from palladio.model.config.config_overrides import overrides_of
from palladio.runtime.interface.errors import ConfigError, FlagErrors
from palladio.server.launch import report_error

_EXAMPLES = (
    "palladio migrate 'python -m sgl_jax.launch_server --model-path Qwen/Qwen3-8B --tp-size 4 --moe-backend epmoe'",
    "palladio migrate 'vllm serve Qwen/Qwen3-8B --max-model-len 8192 --gpu-memory-utilization 0.9'",
)
_MODULES: Final = {
    "sgl_jax.launch_server": "SGLang-JAX",
    "sglang.launch_server": "SGLang",
    "vllm.entrypoints.openai.api_server": "vLLM",
    "vllm.entrypoints.api_server": "vLLM",
    "palladio.launch_server": "Palladio",
}
_COMMANDS: Final = {"sglang": "SGLang", "vllm": "vLLM", "jpt": "JetStream", "palladio": "Palladio"}  # with `serve`
_DEFAULTS: Final = {"vLLM": {"host": "0.0.0.0", "port": "8000"}}  # that are others here
_ASSIGNMENT: Final = re.compile(r"(?:--env=|-e)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[&|;]+|(\d*|&)[<>].*", re.DOTALL)
_EXPANSION: Final = re.compile(r"\$[\w({]")


class Launch(NamedTuple):
    """A launch command of another server.

    Attributes:
        server: as in a sentence.
        variables: of the environment, set in front of the command.
        words: its flags.
    """

    server: str
    variables: Mapping[str, str]
    words: Sequence[str]


class Migrated(NamedTuple):
    """What does the same here.

    Attributes:
        line: the command, as it is typed in a shell.
        reasons: a line for each flag that has changed.
        missing: a sentence for each feature that is not here.
    """

    line: str
    reasons: Sequence[str]
    missing: Sequence[str]


def parser() -> argparse.ArgumentParser:
    """Make the command's parser."""
    made = make_parser(
        "migrate",
        "Prints the command that does here what a launch command of SGLang, SGLang-JAX, vLLM or JetStream does, with a "
        "reason for each flag that has changed.",
        _EXAMPLES,
        {0: "the command does the same", 1: "a feature is missing here, which a line names", 2: "no launch command"},
        usage="palladio migrate 'COMMAND'",
    )
    made.add_argument("command", nargs="+", help="the whole command, in quotes")
    return made


def migrate(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the command that does the same; returns 1 if a feature is missing here."""
    given, more = parser().parse_known_args(argv)
    words = [*given.command, *more]
    try:
        found = migrated(read_launch(words[0] if len(words) == 1 else shlex.join(words)))
    except ConfigError as error:
        return report_error(error)
    print(found.line)
    for reason in found.reasons:
        print(f"# {reason}")
    for sentence in found.missing:
        print(f"# not here: {sentence}")
    return 1 if found.missing else 0


def read_launch(text: str) -> Launch:
    """Find a launch command, with the variables in front of it (or of `docker run -e`).

    Raises:
        ConfigError: there is none, or its quotes do not match.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"cannot split the command into words: {error}") from None
    start, server = _start(words)
    ends = [place for place in range(start, len(words)) if _OPERATOR.fullmatch(words[place])]
    rest = words[start : ends[0]] if ends else words[start:]
    variables = {found[1]: found[2] for word in words[:start] if (found := _ASSIGNMENT.fullmatch(word))}
    return Launch(server, variables, rest)


def _start(words: Sequence[str]) -> tuple[int, str]:
    """Give the place of a launch command's first flag, and its server."""
    for place, word in enumerate(words):
        if word == "-m" and words[place + 1 : place + 2] and words[place + 1] in _MODULES:
            return place + 2, _MODULES[words[place + 1]]
        name = word.rpartition("/")[2]
        if name in _COMMANDS and words[place + 1 : place + 2] == ["serve"]:
            return place + 2, _COMMANDS[name]
    known = ", ".join([*(f"python -m {module}" for module in _MODULES), *(f"{name} serve" for name in _COMMANDS)])
    raise ConfigError(f"no launch command in it; known are {known}")


def migrated(launch: Launch) -> Migrated:
    """Write a launch command as the one that does the same here.

    Raises:
        ConfigError: its words are no options.
    """
    options = read_options(launch.words)
    files = [option for option in options if option.name == "config"]
    flags = GivenFlags(flag_table())
    flags.take([option for option in options if option not in files])
    kept, reasons, missing = _variables(launch.variables)
    reasons += [_reason(value) for value in flags.values.values() if _is_changed(value)]
    reasons += [f"{option.shown} is left out: the server does the same without it" for option in flags.without]
    reasons += flags.warnings
    words = [word for value in flags.values.values() if value.name != "model_path" for word in _words(value)]
    words += [word for file in files for word in ("--config", *file.values)]
    for name, default in _DEFAULTS.get(launch.server, {}).items():
        if name not in flags.values:
            if not files:
                words += [f"--{name}", default]
            where = f"; give it unless {files[0].shown} does" if files else ""
            reasons.append(f"--{name} {default} is {launch.server}'s default{where}")
    dp_size = flags.values.get("dp_size")
    is_shared = "enable_dp_attention" in flags.values
    if launch.server == "SGLang-JAX" and dp_size is not None and dp_size.value > 1 and not is_shared:
        options.append(Option.of("--enable-dp-attention", []))
        words.append("--enable-dp-attention")
        reasons.append("--enable-dp-attention: SGLang-JAX's --dp-size divides the --tp-size devices")
    mistakes = flags.errors if files else _mistakes([*read_peer_environment(launch.variables).options, *options])
    missing += _sentences(mistakes)
    if mistakes and any(map(_EXPANSION.search, launch.words)):
        missing.append("values of the shell's variables are not known here: write them out")
    model = flags.values.get("model_path")
    if model is None and not files:
        reasons.append("no model is named: Palladio serves its embedded one; name yours behind `palladio serve`")
    command = ["palladio", "serve", *([] if model is None else [str(model.value)]), *words]
    line = " ".join([*(f"{name}={_quoted(value)}" for name, value in kept.items()), *map(_quoted, command)])
    return Migrated(line, reasons, missing)


def _mistakes(options: Sequence[Option]) -> list[ConfigError]:
    """Give what `serve` would say of options, without a look at files."""
    flags = GivenFlags(flag_table())
    flags.take([Option.of("--model-path", ["m"], rank=-1), *options])
    errors: list[ConfigError] = []
    try:
        command = build_command(flags)
        command.check(command.args)
    except ConfigError as error:
        errors.append(error)
    overrides = flags.values.get("json_model_override_args")
    if overrides is not None:
        try:
            overrides_of(overrides.value)
        except ConfigError as error:
            errors.append(ConfigError(f"{overrides.option.shown}: {error}"))
    return errors


def _sentences(errors: Sequence[ConfigError]) -> list[str]:
    """Give one sentence for each missing feature and each mistake; an error of several has its own."""
    plain = [error for error in errors if not isinstance(error, FlagErrors)]
    joined = [FlagErrors.join(plain)] if plain else []
    several = [*(error for error in errors if isinstance(error, FlagErrors)), *joined]
    return [one for error in several for one in (error.sentences if isinstance(error, FlagErrors) else [str(error)])]


def _quoted(word: str) -> str:
    """Quote a word for a shell, which still puts in values of its variables."""
    return f'"{word}"' if _EXPANSION.search(word) and not re.search(r'["`\\]', word) else shlex.quote(word)


def _variables(given: Mapping[str, str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Give the variables that stay in front of the command, reasons for others, and what is missing."""
    table = PeerVariables(load_peer_variables())
    kept, reasons, missing = {}, [], []
    for name, value in given.items():
        row = table.find(name)
        if row is None or row.verdict in ("same", "applied"):
            kept[name] = value
        elif row.asks_nothing(value) or row.verdict == "accepted":
            reasons.append(f"{name} is left out: {row.here}")
        else:
            missing.append(f"variable {name}: {row.here}")
    return kept, reasons, missing


def _is_changed(value: OwnValue) -> bool:
    if value.name == "model_path":
        return False
    typed = " ".join(value.option.values)
    return value.typed_name != value.name or not (typed == _text(value.value) or _is_number(typed, value.value))


def _is_number(typed: str, value: Any) -> bool:
    """Return whether a word is a flag's number, written another way: 300 and 300.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return float(typed) == value
    except ValueError:
        return False


def _reason(value: OwnValue) -> str:
    return f"{value.option.shown} is {' '.join(_words(value))} here"


def _words(value: OwnValue) -> list[str]:
    """Give the words that set a flag of ours."""
    option = "--" + value.name.replace("_", "-")
    if isinstance(value.value, bool):
        return [option if value.value else "--no-" + value.name.replace("_", "-")]
    values = value.value if isinstance(value.value, tuple) else (value.value,)
    return [option, *map(str, values)]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
