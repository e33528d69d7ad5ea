"""`palladio tune`: measures this machine's CPU and writes the table by which `palladio serve` chooses its products."""

import argparse
from collections.abc import Mapping, Sequence

from palladio.cli.parsing import make_parser
from palladio.processes.child import run_module


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "tune",
        "Measures this machine's CPU, and writes the table by which `palladio serve` chooses its products.",
        ["palladio tune", "palladio tune --output /some/folder"],
    )
    found.add_argument(
        "--output",
        metavar="DIR",
        default="",
        help="folder of tables; KIND/narrow_matmul.json is written there, KIND being the best feature of the CPU "
        "(default: where `palladio serve` looks, in the installed package)",
    )
    return found


def tune(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Measures in a process of its own; see `palladio tune --help`.

    Args:
        environment: for that process.

    Returns:
        The exit code: 0, 1 for a table that cannot be written, 2 for a wrong flag, 130 after Ctrl-C.
    """
    args = parser().parse_args(argv)
    own = {**environment, "JAX_PLATFORMS": "cpu"}
    return run_module("palladio.commands.offline.tune_worker", args.output, environment=own)
