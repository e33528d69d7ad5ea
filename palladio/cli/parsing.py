"""Parsers of the commands: each help has examples, and says what the exit codes mean."""

import argparse
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.runtime.interface.errors import ConfigError

_WIDTH = 110  # characters of a line
_USUAL = {0: "all went well", 1: "it failed", 2: "a wrong flag, name or file", 130: "Ctrl-C"}


def make_parser(
    command: str,
    description: str,
    examples: Sequence[str],
    exits: Mapping[int, str] | None = None,
    *,
    usage: str | None = None,
    more: str = "",
) -> argparse.ArgumentParser:
    """
    Args:
        examples: command lines.
        exits: exit code → meaning, where it differs from the usual one.
        more: a paragraph before the examples.
    """
    codes = {**_USUAL, **(exits or {})}
    epilog = "\n".join(
        [
            *([_wrapped(more), ""] if more else []),
            "examples:",
            *(f"  {example}" for example in examples),
            "",
            "exit codes:",
            *(f"  {code:<4} {meaning}" for code, meaning in sorted(codes.items())),
        ]
    )
    return argparse.ArgumentParser(
        f"palladio {command}",
        usage=usage,
        description=_wrapped(description),
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH)


def json_value(text: str) -> Any:
    """The type of a flag whose value is JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


def check_output(flag: str, path: Path) -> None:
    """Before the work whose results are written there.

    Raises:
        ConfigError: the file cannot be written.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a directory: give the name of a file")
    if not folder.is_dir():
        raise ConfigError(f"{flag} {path}: there is no directory {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{flag} {path} cannot be written: permission denied")


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
