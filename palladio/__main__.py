"""`palladio serve …` and its other commands; `python -m palladio` is the same."""

import sys

from palladio.processes.hidden_modules import explain_hidden_modules

if __name__ == "__main__":
    explain_hidden_modules()

import difflib
import importlib
import os
from collections.abc import Sequence
from typing import Any

from palladio.cli.table import COMMANDS, OTHERS, render_help
from palladio.processes.early_signals import (
    BROKEN_PIPE,
    INTERRUPTED,
    TERMINATED,
    end_at_once,
    raise_on_interrupt,
    raise_on_terminate,
)
from palladio.server.early_start import begin_to_serve
from palladio.version import __version__


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
        case "help" | "--help" | "-h" if rest[:1] and rest[0] in COMMANDS:
            return main([rest[0], "--help"])
        case "help" | "--help" | "-h" if rest and rest[0] not in OTHERS:
            print(_unknown(rest[0]), end="", file=sys.stderr)
            return 2
        case "help" | "--help" | "-h":
            print(render_help(), end="")
            return 0
        case _ if command not in COMMANDS:
            print(_unknown(command), end="", file=sys.stderr)
            return 2
    serves = command == "serve"
    options: dict[str, Any] = {}
    if serves:
        options = {"early": begin_to_serve(rest) if argv is None else None}
    elif argv is None:
        end_at_once(INTERRUPTED, TERMINATED)
    run: Any = vars(importlib.import_module(COMMANDS[command].module))[COMMANDS[command].function]
    if argv is None and not serves:  # the server has its own handlers by the time that it starts an engine
        raise_on_interrupt()
        raise_on_terminate()
    try:
        status: int = run(rest, os.environ, **options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # who read the output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _unknown(command: str) -> str:
    if command.startswith("-"):
        return f"error: {command}: a command comes first, such as `palladio serve {command}`\n\n{render_help()}"
    close = difflib.get_close_matches(command, [*COMMANDS, *OTHERS], n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"error: unknown command {command!r}{hint}\n\n{render_help()}"


if __name__ == "__main__":
    sys.exit(main())
