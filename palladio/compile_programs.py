"""`palladio compile …`: compiles ahead what `palladio serve` with the same flags needs, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from palladio.launch_server import gpu_memory, read_command, report_error
from palladio.runtime.interface.errors import PalladioError


def compile_programs(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Compiles for a launch command.

    Returns:
        The exit code: 0, 2 for a wrong flag, 130 after Ctrl-C, 1 for any other failure.

    Args:
        argv: flags of `palladio serve`; without --model-path it is about the embedded model.
        environment: as for `launch`, and for the process that compiles.
    """
    try:
        config = read_command(argv, environment, default_model=True).engine_config()
    except PalladioError as error:
        return report_error(error)
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "palladio.compile_worker"],
            input=msgspec.json.encode(config),
            env={**environment, **gpu_memory(environment), "PYTHONPATH": path},
            check=False,
        )
    except KeyboardInterrupt:  # the worker has had it too
        return 130
    return child.returncode if child.returncode >= 0 else 1
