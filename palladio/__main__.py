"""`palladio serve …` and its other commands; `python -m palladio` is the same."""

import os
import sys
from collections.abc import Sequence

from palladio import __version__
from palladio.compile_programs import compile_programs
from palladio.convert import convert
from palladio.launch_server import launch
from palladio.plan import plan
from palladio.replay import replay

HELP = """usage: palladio <command> [flags]

commands:
  serve      serve a model on OpenAI-compatible routes: palladio serve [MODEL]; without one, a small embedded model
             (`palladio serve --help` lists the flags)
  compile    compile what `serve` with the same flags would, into its cache; with --compiled-dir DIR into a
             directory instead, for any machine of the same kind
  convert    write a model's weights as an Orbax checkpoint, with checksums: palladio convert HF_DIR OUT
  plan       say what a model needs and can at most do on hardware that is not at hand; `palladio plan --help`
  replay     run the requests of a crash dump again, and compare their tokens
  version    print the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["help"]
    match command:
        case "serve":
            return launch(rest, os.environ, default_model=True)
        case "compile":
            return compile_programs(rest, os.environ)
        case "convert":
            return convert(rest, os.environ)
        case "plan":
            return plan(rest, os.environ)
        case "replay":
            return replay(rest, os.environ)
        case "version" | "--version":
            print(__version__)
            return 0
        case "help" | "--help" | "-h":
            print(HELP, end="")
            return 0
        case _:
            print(f"error: unknown command {command!r}\n\n{HELP}", end="", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
