"""`palladio plan …`: what a model needs, and can at most do, on hardware that is not at hand."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from palladio.cli.parsing import make_parser
from palladio.flags.default_model import DEFAULT_MODEL_NAME
from palladio.flags.server_args import names_model, parse_server_args
from palladio.processes.child import run_module
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.runtime.text.hub.servable_config import glance_at
from palladio.server.launch import report_error

COMPILER_ENVIRONMENT: Final = {  # for a process in which nothing but compilers run
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # else libtpu asks a cloud's metadata server where it runs
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no chip is opened, so processes may compile side by side
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_COMPILER_PREFIXES = ("TPU_", "JAX_PLATFORMS", "XLA_FLAGS")


def parser() -> argparse.ArgumentParser:
    """For the help: `_own_flags` reads them, because --compile is a flag of `serve` too, with a value."""
    found = make_parser(
        "plan",
        "Estimates whether a model fits, how many tokens of KV cache remain, and the highest possible speed. It reads "
        "only config.json: no weights and no hardware are needed. --model-path may be a config.json file.",
        [
            "palladio plan Qwen/Qwen3-8B                       # on every TPU slice and GPU host of one host",
            "palladio plan --model-path /models/mine --topology v6e-8 --tp-size 8",
            "palladio plan --model-path config.json --topology h200-8 --compile",
        ],
        {2: "a wrong flag, or a model that does not fit"},
        usage="palladio plan [MODEL] [--topology NAME] [--compile] [flags of `palladio serve`]",
    )
    help_of_topology = (
        "a TPU slice or GPU host, such as v5e-4, v6e-8, v5p-8, tpu7x-8, H100, 8xH200, A100-80GB (default: all of one "
        "host)"
    )
    found.add_argument("--topology", metavar="NAME", help=help_of_topology)
    help_of_compile = "run the real compiler for exact workspace (needs jax[tpu] or jax's CUDA plugin, no accelerator)"
    found.add_argument("--compile", action="store_true", help=help_of_compile)
    return found


def plan(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Prints a plan.

    Args:
        argv: flags of `palladio serve`, and those of the help text.
        environment: for the process that plans.

    Returns:
        The exit code: 0, 2 for a wrong flag or a model that does not fit, 130 after Ctrl-C.
    """
    if {"-h", "--help"} & set(argv):
        parser().print_help()
        return 0
    try:
        words, topology, compiles = _own_flags(argv)
        if not names_model(words):
            words = [f"--model-path={DEFAULT_MODEL_NAME}", *words]
        command = parse_server_args(words)
        args, gives_tp_size = command.args, "tp_size" in command.given
        if not gives_tp_size:  # it will be of the slice's size, which --ep-size has to divide, not 1
            args = dataclasses.replace(
                args, parallel=dataclasses.replace(args.parallel, tp_size=_least_tp_size(args.parallel))
            )
        config = args.engine_config()
        glance_at(Path(config.source.model_path).expanduser(), config.source.json_model_override_args)
        request = {
            "config": config,
            "tp_size": args.parallel.tp_size if gives_tp_size else None,
            "topology": topology,
            "compile": compiles,
            "words": words,
        }
    except PalladioError as error:
        return report_error(error)
    kept = {name: value for name, value in environment.items() if not name.startswith(_COMPILER_PREFIXES)}
    return run_module(
        "palladio.commands.plan.plan_worker", environment={**kept, **COMPILER_ENVIRONMENT}, request=request
    )


def _own_flags(argv: Sequence[str]) -> tuple[list[str], str | None, bool]:
    """The flags of `serve`, and --topology and --compile."""
    words, topology, compiles = [], None, False
    left = list(argv)
    while left:
        word = left.pop(0)
        name, has_value, value = word.partition("=")
        if name == "--topology":
            if not has_value and not left:
                raise ConfigError("--topology needs a value, such as v6e-8")
            topology = value if has_value else left.pop(0)
        elif word == "--compile" and (not left or left[0].startswith("-")):
            compiles = True
        else:
            words.append(word)
    return words, topology, compiles


def _least_tp_size(parallel: ParallelConfig) -> int:
    """That --ep-size and, where its devices are the ranks, --dp-size divide."""
    return max(1, parallel.ep_size, parallel.dp_size if parallel.enable_dp_attention else 1)
