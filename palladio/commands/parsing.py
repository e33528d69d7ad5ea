"""Parsers of the commands: each help has examples, and says what the exit codes mean."""

import argparse
import textwrap
from collections.abc import Mapping, Sequence

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


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
