"""From a command line to a serving process."""

import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from palladio.flags.default_model import DEFAULT_MODEL_NAME, default_model_path, larger_model_hint
from palladio.flags.gpu_memory import gpu_memory
from palladio.flags.host_environment import find_hosts
from palladio.flags.options import Option
from palladio.flags.peer_environment import read_peer_environment
from palladio.flags.server_args import ServerArgs, names_model, parse_server_args
from palladio.http.server import check_settings, serve
from palladio.processes.early_signals import BROKEN_PIPE, INTERRUPTED, raise_on_interrupt
from palladio.runtime.folders.private_folder import FOLDER_MODE, make_folder
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.user_dirs import user_data_dir
from palladio.runtime.interface.errors import ConfigError, DeviceTakenError, FlagErrors, PalladioError
from palladio.runtime.process.engine_child import EarlyEngine
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.telemetry.logs import configure_logging
from palladio.runtime.text.hub.local_path import local_path
from palladio.runtime.text.hub.servable_config import check_text_only, glance_at
from palladio.server.worker_host import WorkerHostRequest, become_worker_host

DEVICE_TAKEN: Final = os.EX_TEMPFAIL  # 75, so that an orchestrator can replace the machine

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, early: EarlyEngine | None = None) -> int:
    """Serves until interrupted; returns the exit code."""
    return launch(sys.argv[1:] if argv is None else argv, os.environ, early=early)


def launch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    early: EarlyEngine | None = None,
) -> int:
    """Serves what a command line asks for.

    Args:
        argv: flags; without --model-path, the embedded model is served.
        environment: PALLADIO_CACHE_DIR and XDG_CACHE_HOME say where compiled files are kept, PALLADIO_DATA_DIR
            and XDG_DATA_HOME where uploaded files and batches are; XLA_CLIENT_MEM_FRACTION how much of a GPU XLA takes;
            `find_hosts` says which variables name other hosts, `read_peer_environment` which other servers have.
        early: an engine's process that has been started; it has ended when this returns.

    Returns:
        The process's exit code: 0 after a signal, 2 for a wrong flag, 75 when another process has the device, 1 when
        the engine could not start for another reason.
    """
    try:
        args = read_command(argv, environment, _check)
        config = args.engine_config()
        if config.parallel.node_rank:
            if early is not None:
                early.close()
            request = WorkerHostRequest(config, args.http.log_level, args.observability.log_format)
            become_worker_host(request, {**environment, **gpu_memory(environment)})
        transport = ProcessTransport(environment=gpu_memory(environment), early=early)
        return serve(AsyncEngine(config, transport), args.http, args.observability)
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    finally:
        if early is not None:
            early.close()


def _check(args: ServerArgs) -> None:
    """What can be known before anything starts.

    Raises:
        ConfigError: see glance_at and check_settings.
    """
    glance_at(Path(args.source.model_path).expanduser(), args.source.json_model_override_args)
    if not args.parallel.node_rank:  # other hosts serve no HTTP
        check_settings(args.http)


def read_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    check: Callable[[ServerArgs], None] | None = None,
) -> ServerArgs:
    """What a command line asks for, with nothing left to chance; sets up the log and says what it understood.

    Args:
        argv: flags; without --model-path, they are of the embedded model.
        check: is called before anything is printed.

    Raises:
        ConfigError: a flag is wrong, or names a directory that is not there.
    """
    is_named = names_model(argv)
    variables = read_peer_environment(environment)
    defaults = () if is_named else _default_model_options()
    command = parse_server_args(argv, (*defaults, *variables.options), variables.errors)
    args = _settle(command.args, environment)
    command.check(args)
    try:
        _check_files(args, command.asks_pictures)
        if check is not None:
            check(args)
    except ConfigError as error:
        raise command.explained(error) from None
    if not is_named:
        print(
            f"No --model-path given: serving the embedded default model ({default_model_path()}), which needs no "
            f"download.\n{larger_model_hint('serve')}",
            file=sys.stderr,
        )
    configure_logging(args.http.log_level, args.observability.log_format)
    logger.info("server_args=%s", args.describe())
    for note in variables.notes:
        logger.info(note)
    for warning in (*variables.warnings, *command.warnings):
        logger.warning(warning)
    return args


def _check_files(args: ServerArgs, asks_pictures: str) -> None:
    """Check that the model's files are there.

    Raises:
        ConfigError: they are not, or they are of a model with pictures, and the flag `asks_pictures` asks for them.
    """
    for path, flag in ((args.source.model_path, "--model-path"), (args.source.tokenizer_path, "--tokenizer-path")):
        if path is not None and not Path(path).expanduser().is_file():  # readers of files say what is wrong with one
            local_path(path, flag)
    if asks_pictures:
        check_text_only(Path(args.source.model_path).expanduser(), asks_pictures)


def report_error(error: PalladioError) -> int:
    """Print one line for each thing that is wrong, and give the exit code."""
    for sentence in error.sentences if isinstance(error, FlagErrors) else (str(error),):
        print(f"error: {' '.join(sentence.split())}", file=sys.stderr)  # one line: jax's own words may be many
    if isinstance(error, DeviceTakenError):
        return DEVICE_TAKEN
    return 2 if isinstance(error, ConfigError) else 1


def run_worker(work: Callable[[], None]) -> int:
    """A worker process's whole work; returns its exit code: 0, 2 for a flag to change, 75 for a device that another
    process has, 1 for any other failure that has a message, 130 after Ctrl-C, 141 if its output is closed."""
    raise_on_interrupt()
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:  # who read the output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _default_model_options() -> tuple[Option, ...]:
    """Give the options of the embedded model, to which all others are preferred."""
    values = {"--model-path": str(default_model_path()), "--served-model-name": DEFAULT_MODEL_NAME}
    return tuple(Option.of(flag, [value], rank=-1) for flag, value in values.items())


def _settle(args: ServerArgs, environment: Mapping[str, str]) -> ServerArgs:
    """Fixes what is left to chance or to the environment, so that the boot line shows all of it."""
    execution = args.execution
    if execution.random_seed is None:
        execution = dataclasses.replace(execution, random_seed=secrets.randbelow(2**30))
    if execution.compilation_cache_dir is None:
        execution = dataclasses.replace(execution, compilation_cache_dir=str(execution.cache_path(environment)))
    parallel, survival = find_hosts(args.parallel, environment), args.survival
    if parallel.num_hosts > 1:
        survival = dataclasses.replace(survival, max_engine_restarts=0)
    http = args.http
    if http.file_storage_path is None and http.port != 0:
        http = dataclasses.replace(http, file_storage_path=_storage_path(environment, http.port))
    return dataclasses.replace(args, execution=execution, parallel=parallel, survival=survival, http=http)


def _storage_path(environment: Mapping[str, str], port: int) -> str | None:
    """A folder for each port: servers on one host don't share it, and a restarted one finds its own."""
    data = user_data_dir(environment)
    if data is not None:
        folder = data / "storage" / str(port)
        try:
            make_folder(folder)
            folder.chmod(FOLDER_MODE)  # an earlier version made it for others to look into
        except OSError as error:
            logger.warning(
                "Files and batches will be deleted when the server stops: %s; set --file-storage-path to keep them",
                error,
            )
        else:
            return str(folder)
    return None
