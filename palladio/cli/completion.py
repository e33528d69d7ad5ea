"""`palladio completion bash|zsh|fish`: the shell's completion, from the tables that the commands themselves have."""

import argparse
import dataclasses
import importlib
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import docstring_parser

from palladio.cli.parsing import make_parser
from palladio.cli.table import COMMANDS, OTHERS
from palladio.flags.server_args import ServerArgs, own_flags
from palladio.model.config.quantization_flag import QUANTIZATIONS

SHELLS: Final = ("bash", "zsh", "fish")
_LOWER: Final = str.maketrans({"'": "", "`": "", "\\": "", '"': "", "$": "", "[": "(", "]": ")", ":": " "})
_SUGGESTED: Final = {"--quantization": QUANTIZATIONS}  # texts that may say more than one of these
_MOST_HELP = 60  # characters of a flag's help


@dataclasses.dataclass(frozen=True, slots=True)
class _Flag:
    """A flag, as completions describe it.

    Attributes:
        values: the values that it takes, if there are few; empty: any.
    """

    name: str
    help: str
    values: tuple[str, ...] = ()


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "completion",
        "Prints what completes commands, flags and values of `palladio` in a shell.",
        [
            "palladio completion bash > ~/.local/share/bash-completion/completions/palladio",
            "palladio completion zsh > ~/.zfunc/_palladio            # with fpath+=~/.zfunc before compinit",
            "palladio completion fish > ~/.config/fish/completions/palladio.fish",
        ],
    )
    found.add_argument("shell", choices=SHELLS)
    return found


def completion(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    shell = parser().parse_args(argv).shell
    flags = {name: list(_flags_of(name)) for name in COMMANDS}
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](flags), end="")
    return 0


def _flags_of(command: str) -> Iterator[_Flag]:
    names = vars(importlib.import_module(COMMANDS[command].module))
    found = {flag.name: flag for flag in _serve_flags()} if COMMANDS[command].takes_serve_flags else {}
    if "parser" in names:
        for action in names["parser"]()._actions:
            for option in action.option_strings:
                if option.startswith("--"):
                    found[option] = _Flag(option, _short(action.help or ""), tuple(map(str, action.choices or ())))
            if not action.option_strings and action.choices:
                found[""] = _Flag("", "", tuple(map(str, action.choices)))  # of the argument that is no flag
    yield from sorted(found.values(), key=lambda flag: flag.name)


def _serve_flags() -> Iterator[_Flag]:
    defaults = own_flags()
    for group in dataclasses.fields(ServerArgs):
        kind: Any = group.type
        meanings = {
            param.arg_name: param.description or "" for param in docstring_parser.parse(kind.__doc__ or "").params
        }
        types = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.name not in defaults:
                continue
            option, text = "--" + field.name.replace("_", "-"), _short(meanings.get(field.name, ""))
            yield _Flag(option, text, _SUGGESTED.get(option) or _values(types[field.name]))
            if isinstance(defaults[field.name], bool):
                yield _Flag(f"--no-{option[2:]}", f"not {option}")


def _values(kind: Any) -> tuple[str, ...]:
    """Return the values of a Literal, or of a union that has one."""
    if typing.get_origin(kind) is typing.Literal:
        return tuple(map(str, typing.get_args(kind)))
    return tuple(value for part in typing.get_args(kind) for value in _values(part))


def _short(text: str) -> str:
    words = " ".join(text.split()).replace("%(default)s", "…").translate(_LOWER)
    return words if len(words) <= _MOST_HELP else f"{words[: _MOST_HELP - 1].rstrip()}…"


def _bash(flags: Mapping[str, Sequence[_Flag]]) -> str:
    cases = "\n".join(
        f"    {name}) flags={shlex.quote(' '.join(flag.name for flag in found))} ;;" for name, found in flags.items()
    )
    values = {
        f"{name},{flag.name}": " ".join(flag.values) for name, found in flags.items() for flag in found if flag.values
    }
    of_flags = "\n".join(f"    {key}) words={shlex.quote(listed)} ;;" for key, listed in values.items())
    return f"""# bash completion of palladio
_palladio() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}} flags= words=
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{" ".join([*COMMANDS, *OTHERS])}' -- "$cur"))
    return
  fi
  case $command in
{cases}
    help) words='{" ".join(COMMANDS)}' ;;
  esac
  case $command,$prev in
{of_flags}
  esac
  case $command,$COMP_CWORD in
    completion,2) words='{" ".join(SHELLS)}' ;;
  esac
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}}
complete -o filenames -F _palladio palladio
"""


def _zsh(flags: Mapping[str, Sequence[_Flag]]) -> str:
    commands = "\n".join(f"    '{name}:{_short(text)}'" for name, text in _summaries())
    cases = []
    for name, found in flags.items():
        arguments = " \\\n        ".join(_zsh_argument(flag) for flag in found)
        cases.append(f"    {name})\n      _arguments -S \\\n        {arguments} \\\n        '*:file:_files'\n      ;;")
    return f"""#compdef palladio
_palladio() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
if [[ $funcstack[1] == _palladio ]]; then _palladio "$@"; else compdef _palladio palladio; fi
"""


def _zsh_argument(flag: _Flag) -> str:
    if not flag.name:
        return f"'1:value:({' '.join(flag.values)})'"
    values = f":value:({' '.join(flag.values)})" if flag.values else ""
    return f"'{flag.name}[{flag.help}]{values}'"


def _fish(flags: Mapping[str, Sequence[_Flag]]) -> str:
    lines = ["# fish completion of palladio"]
    lines += [
        f"complete -c palladio -f -n __fish_use_subcommand -a {name} -d {shlex.quote(_short(text))}"
        for name, text in _summaries()
    ]
    for name, found in flags.items():
        for flag in found:
            condition = f"complete -c palladio -n '__fish_seen_subcommand_from {name}'"
            values = f" -x -a {shlex.quote(' '.join(flag.values))}" if flag.values else ""
            option = f" -l {flag.name[2:]} -d {shlex.quote(flag.help)}" if flag.name else ""
            lines.append(f"{condition}{option}{values}")
    return "\n".join([*lines, ""])


def _summaries() -> Iterator[tuple[str, str]]:
    yield from ((name, command.summary) for name, command in COMMANDS.items())
    yield from OTHERS.items()
