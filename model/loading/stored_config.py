"""What a checkpoint's tensors say about its config.json, before a model is built: its layers, and its head."""

import dataclasses
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from palladio.model.config import ModelConfig
from palladio.model.errors import CheckpointError
from palladio.model.loading.checkpoint import Checkpoint, has_safetensors
from palladio.model.loading.orbax_weights import MANIFEST, Manifest, is_converted
from palladio.model.loading.safetensors_file import StoredTensor
from palladio.model.loading.stored_weights import EMBEDDING, HEAD, HEAD_TABLE, by_name

LoadFormat = Literal["auto", "safetensors", "orbax", "dummy"]

_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_ROWS = 4096  # of two tables that are compared at a time

logger = logging.getLogger(__name__)


def agree_with_weights(path: Path, config: ModelConfig, load_format: LoadFormat) -> ModelConfig:
    """The config of the model that a checkpoint holds. A model whose config.json ties its head to its embedding, and
    whose checkpoint has both with different values, is untied, as in transformers.

    Args:
        path: model directory; without weights, as for random ones, the config is taken as it is.

    Raises:
        CheckpointError: there are fewer layers than config.json says, or the weights cannot be read.
    """
    if load_format == "dummy":
        return config
    if load_format == "orbax" or (load_format == "auto" and is_converted(path)):
        if not (path / MANIFEST).is_file():
            return config  # whoever loads it says what is missing
        names = Manifest.read(path).shapes
        _check_layers(path, names, config)
        return (
            _untied(path, config)
            if _is_tied(config) and any(name.startswith(f"{HEAD_TABLE}.") for name in names)
            else config
        )
    if not has_safetensors(path):
        return config
    with Checkpoint(path) as checkpoint:
        tensors = by_name(checkpoint)
        _check_layers(path, tensors, config)
        embedding, head = tensors.get(EMBEDDING), tensors.get(HEAD)
        if not _is_tied(config) or embedding is None or head is None:
            return config
        if _are_equal(checkpoint, embedding, head):
            return config
    return _untied(path, config)


def _is_tied(config: ModelConfig) -> bool:
    return config.has_head and config.tie_word_embeddings


def _untied(path: Path, config: ModelConfig) -> ModelConfig:
    logger.warning(
        "%s: config.json sets tie_word_embeddings, but the checkpoint has a separate output head (%s) that differs "
        "from the embedding (%s). The head is used, untied. Set tie_word_embeddings to false to silence this warning",
        path,
        HEAD,
        EMBEDDING,
    )
    return dataclasses.replace(config, tie_word_embeddings=False)


def _check_layers(path: Path, names: Iterable[str], config: ModelConfig) -> None:
    """A config.json with a layer too many would else be noticed when all of its layers are built."""
    found = 1 + max((int(match[1]) for match in map(_LAYER.match, names) if match), default=-1)
    if found < config.num_layers:
        raise CheckpointError(
            f"{path}: num_hidden_layers is {config.num_layers} in config.json, but the checkpoint has {found} layers"
        )


def _are_equal(checkpoint: Checkpoint, one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape:
        return False
    first, second = checkpoint.read(one), checkpoint.read(other)
    try:
        return all(
            np.array_equal(first[row : row + _ROWS], second[row : row + _ROWS]) for row in range(0, len(first), _ROWS)
        )
    finally:
        del first, second  # views of the file, which has to close
        checkpoint.release(one)
        checkpoint.release(other)
