"""`python -m palladio.launch_server --model-path …`: from a command line to a serving process."""

import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from palladio.default_model import DEFAULT_MODEL_NAME, ensure_default_model
from palladio.http.server import serve
from palladio.logs import configure_logging
from palladio.runtime.async_engine import AsyncEngine
from palladio.runtime.errors import ConfigError, PalladioError
from palladio.server_args import ServerArgs, names_model, parse_server_args

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until interrupted; returns the exit code."""
    return launch(sys.argv[1:] if argv is None else argv, os.environ)


def launch(argv: Sequence[str], environment: Mapping[str, str], *, default_model: bool = False) -> int:
    """Serves what a command line asks for.

    Args:
        argv: flags.
        environment: PALLADIO_CACHE_DIR and XDG_CACHE_HOME say where made and compiled files are kept.
        default_model: without --model-path, serve the embedded model instead of failing.

    Returns:
        The process's exit code: 0 after a signal, 2 for a wrong flag, 1 when the engine could not start.
    """
    cache_dir = user_cache_dir(environment)
    try:
        if default_model and not names_model(argv):
            argv = [*argv, *_default_model_flags(cache_dir)]
        command = parse_server_args(argv)
        args = _settle(command.args, cache_dir)
        configure_logging(args.http.log_level)
        logger.info("server_args=%s", args.describe())
        for warning in command.warnings:
            logger.warning(warning)
        engine = AsyncEngine.from_config(args.engine_config(), in_process=False)
        return serve(engine, args.http)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PalladioError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def user_cache_dir(environment: Mapping[str, str]) -> Path:
    """Where Palladio keeps what it can make again."""
    if own := environment.get("PALLADIO_CACHE_DIR"):
        return Path(own).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "palladio"


def _default_model_flags(cache_dir: Path) -> list[str]:
    path = ensure_default_model(cache_dir)
    print(
        f"No --model-path given: serving the embedded default model ({path}).\n"
        "Its weights are random, so it talks nonsense; it is there to try the server without a download.",
        file=sys.stderr,
    )
    return ["--model-path", str(path), "--served-model-name", DEFAULT_MODEL_NAME]


def _settle(args: ServerArgs, cache_dir: Path) -> ServerArgs:
    """Fixes what is left to chance or to the environment, so that the boot line tells all of it."""
    execution = args.execution
    if execution.random_seed is None:
        execution = dataclasses.replace(execution, random_seed=secrets.randbelow(2**30))
    if execution.compilation_cache_dir is None:
        execution = dataclasses.replace(execution, compilation_cache_dir=str(cache_dir / "xla"))
    return dataclasses.replace(args, execution=execution)


if __name__ == "__main__":
    sys.exit(main())
