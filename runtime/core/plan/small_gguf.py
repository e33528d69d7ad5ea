"""Weights of a small GGUF file become dense where no product takes them as they are."""

import dataclasses
import logging
from pathlib import Path
from typing import Final

from palladio.model.config.config import ModelConfig
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.gguf.gguf_model import parts_of
from palladio.model.weights.kinds import WeightKinds

MAX_BYTES: Final = 512 << 20  # of the file: dense weights take up to eight times as much

logger = logging.getLogger("palladio.engine")


def as_multiplied(model: ModelConfig, path: Path, platform: str, quantization: str | None) -> ModelConfig:
    """The model with dense weights, on a CPU, where the file has scales of groups: each product would widen its matrix
    as a whole, which takes longer than reading it dense. `--quantization gguf` keeps the file's bits.

    Args:
        path: path of the model.
        quantization: the flag; None: it was not given.
    """
    groups = [kind for kind in model.weight_kinds.all if kind.group is not None]
    if quantization is not None or platform != "cpu" or not groups or not is_gguf(path):
        return model
    size = sum(part.stat().st_size for part in parts_of(path))
    if size > MAX_BYTES:
        return model
    logger.info(
        "Weights of %s (%.0f MB; %s) become dense while they load: no product for CPU takes scales of groups; "
        "--quantization gguf keeps the file's bits",
        path.name,
        size / 1e6,
        "; ".join(kind.name for kind in groups),
    )
    return dataclasses.replace(model, weight_kinds=WeightKinds())
