"""`palladio compile …`: compiles ahead what `palladio serve` with the same flags needs, in a process of its own."""

import argparse
from collections.abc import Mapping, Sequence

from palladio.cli.parsing import make_parser
from palladio.flags.gpu_memory import gpu_memory
from palladio.processes.child import run_module
from palladio.runtime.interface.errors import PalladioError
from palladio.server.launch import read_command, report_error


def parser() -> argparse.ArgumentParser:
    """For the help: all of its flags are those of `serve`."""
    return make_parser(
        "compile",
        "Builds the programs of `palladio serve` with the same flags: into its compilation cache, or with "
        "--compiled-dir into a directory for any machine of the same kind.",
        [
            "palladio compile --model-path /models/mine --tp-size 4",
            "palladio compile --model-path /models/mine --tp-size 4 --compiled-dir /programs",
        ],
        {75: "another process has the device"},
        usage="palladio compile [MODEL] [flags of `palladio serve`]",
    )


def compile_programs(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Compiles for a launch command.

    Returns:
        The exit code: 0, 2 for a wrong flag, 75 when another process has the device, 130 after Ctrl-C, 1 for any other
        failure.

    Args:
        argv: flags of `palladio serve`; without --model-path it is about the embedded model.
        environment: as for `launch`, and for the process that compiles.
    """
    if {"-h", "--help"} & set(argv):
        parser().print_help()
        return 0
    try:
        config = read_command(argv, environment).engine_config()
    except PalladioError as error:
        return report_error(error)
    own = {**environment, **gpu_memory(environment)}
    return run_module("palladio.commands.offline.compile_worker", environment=own, request=config)
