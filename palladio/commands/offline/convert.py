"""`palladio convert HF_DIR OUT`: a model directory whose weights lie as an Orbax checkpoint."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import make_parser
from palladio.flags.default_model import default_model_path, names_default_model
from palladio.model.base.errors import ConfigError
from palladio.model.config.quantization_flag import QuantizationFlag
from palladio.processes.child import run_module
from palladio.runtime.text.hub.servable_config import glance_at
from palladio.server.launch import report_error


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "convert",
        "Writes a model's weights as an Orbax checkpoint, with checksums: it loads faster, and in other bits if asked.",
        [
            "palladio convert Qwen/Qwen3-8B /models/qwen3-8b",
            "palladio convert /models/hf /models/int8 --quantization int8",
        ],
    )
    found.add_argument("source", metavar="HF_DIR", help="a Hugging Face model directory, a hub id, or a GGUF file")
    found.add_argument("out", metavar="OUT", help="directory to write; `palladio serve --model-path OUT` serves it")
    dtypes = ("auto", "bfloat16", "float32", "float16")
    found.add_argument(
        "--dtype",
        choices=dtypes,
        default="auto",
        help="dtype of the weights (default: auto, the dtype of the model's config.json)",
    )
    found.add_argument(
        "--quantization",
        metavar="KIND",
        default="",
        help="bits of the weights, as of `palladio serve` (default: as the checkpoint stores them)",
    )
    return found


def convert(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Converts; a run that was cut short goes on where it stopped.

    Args:
        argv: the two directories and flags.
        environment: for the process that converts.

    Returns:
        The exit code: 0, 2 for a wrong flag or directory, 130 after Ctrl-C, 1 for any other failure.
    """
    found = parser()
    args = found.parse_args(argv)
    if args.quantization:
        try:
            QuantizationFlag.of(args.quantization)
        except ConfigError as error:
            found.error(str(error))
    source = str(default_model_path()) if names_default_model(args.source) else args.source
    try:
        glance_at(Path(source).expanduser())
    except ConfigError as error:
        return report_error(error)
    return run_module(
        "palladio.commands.offline.convert_worker",
        *(source, args.out, args.dtype, args.quantization),
        environment={**environment, "JAX_PLATFORMS": "cpu"},
    )
