"""`palladio serve …` and its other commands; `python -m palladio` is the same."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from palladio import __version__
from palladio.early_signals import INTERRUPTED, TERMINATED, end_at_once, raise_on_interrupt, raise_on_terminate

HELP = """usage: palladio <command> [flags]

commands:
  serve      serve a model with OpenAI-compatible routes: palladio serve [MODEL]; default: a small embedded model
             (`palladio serve --help` lists the flags)
  compile    fill the compilation cache of `serve` with the same flags; with --compiled-dir DIR, export the
             programs to a directory instead, for any machine of the same kind
  convert    write a model's weights as an Orbax checkpoint, with checksums: palladio convert HF_DIR OUT
  plan       print memory needs and speed limits of a model on hardware you do not have; `palladio plan --help`
  eval       tell the perplexity of a text: palladio eval --perplexity FILE --model-path DIR
  replay     run the requests of a crash dump again and compare their tokens
  tune       measure this machine's CPU, so that `serve` chooses the fastest kind of weights for it
  version    print the version
"""


# Module and function of each command. They are imported when they are needed: signals are to be handled before that.
COMMANDS: Final = {
    "serve": ("palladio.launch_server", "launch"),
    "compile": ("palladio.commands.compile_programs", "compile_programs"),
    "convert": ("palladio.commands.convert", "convert"),
    "plan": ("palladio.commands.plan", "plan"),
    "eval": ("palladio.commands.evaluate", "evaluate"),
    "replay": ("palladio.commands.replay", "replay"),
    "tune": ("palladio.commands.tune", "tune"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    Args:
        argv: the command and its flags; None: those of this process, whose signals are then handled too.
    """
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["help"]
    match command:
        case "version" | "--version":
            print(__version__)
            return 0
        case "help" | "--help" | "-h":
            print(HELP, end="")
            return 0
        case _ if command not in COMMANDS:
            print(f"error: unknown command {command!r}\n\n{HELP}", end="", file=sys.stderr)
            return 2
    serves = command == "serve"
    if argv is None:
        end_at_once(*((0, 0) if serves else (INTERRUPTED, TERMINATED)))
    module, name = COMMANDS[command]
    run: Any = vars(importlib.import_module(module))[name]
    if argv is None and not serves:  # the server has its own handlers by the time that it starts an engine
        raise_on_interrupt()
        raise_on_terminate()
    try:
        status: int = run(rest, os.environ, **({"default_model": True} if serves else {}))
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
