"""`palladio convert HF_DIR OUT`: a model directory whose weights lie as an Orbax checkpoint."""

import argparse
from collections.abc import Mapping, Sequence

from palladio.child import run_module
from palladio.model.errors import ConfigError
from palladio.model.quantization_flag import QuantizationFlag


def convert(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Converts; a run that was cut short goes on where it stopped.

    Args:
        argv: the two directories and flags.
        environment: for the process that converts.

    Returns:
        The exit code: 0, 2 for a wrong flag or directory, 130 after Ctrl-C, 1 for any other failure.
    """
    parser = argparse.ArgumentParser(prog="palladio convert", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", metavar="HF_DIR", help="a Hugging Face model directory, a hub id, or a GGUF file")
    parser.add_argument("out", metavar="OUT", help="directory to write; `palladio serve --model-path OUT` serves it")
    dtypes = ("auto", "bfloat16", "float32", "float16")
    parser.add_argument(
        "--dtype",
        choices=dtypes,
        default="auto",
        help="dtype of the weights (default: auto, the dtype of the model's config.json)",
    )
    parser.add_argument(
        "--quantization",
        metavar="KIND",
        default="",
        help="bits of the weights, as of `palladio serve` (default: as the checkpoint stores them)",
    )
    args = parser.parse_args(argv)
    if args.quantization:
        try:
            QuantizationFlag.of(args.quantization)
        except ConfigError as error:
            parser.error(str(error))
    return run_module(
        "palladio.commands.convert_worker",
        *(args.source, args.out, args.dtype, args.quantization),
        environment={**environment, "JAX_PLATFORMS": "cpu"},
    )
