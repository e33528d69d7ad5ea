"""What a checkpoint's tensors say about its config.json, before a model is built: its layers, and its head."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from palladio.model.config import DType, ModelConfig
from palladio.model.errors import CheckpointError
from palladio.model.loading.checkpoint import Checkpoint, has_safetensors
from palladio.model.loading.orbax_weights import MANIFEST, Manifest, is_converted
from palladio.model.loading.safetensors_file import StoredTensor
from palladio.model.loading.stored_scales import FLOAT8
from palladio.model.loading.stored_weights import EMBEDDING, HEAD, HEAD_TABLE, by_name
from palladio.model.quantization_config import dense_weights, weight_kinds
from palladio.model.registry import find_family
from palladio.model.weights.kinds import WeightKind, WeightKinds

LoadFormat = Literal["auto", "safetensors", "orbax", "dummy"]

_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_ROWS = 4096  # of two tables that are compared at a time

logger = logging.getLogger(__name__)


def agree_with_weights(
    path: Path, config: ModelConfig, load_format: LoadFormat, quantization: str | None = None
) -> ModelConfig:
    """The config of the model that a checkpoint holds. A model whose config.json ties its head to its embedding, and
    whose checkpoint has both with different values, is untied, as in transformers. Which weights are quantized is what
    the tensors say.

    Args:
        path: model directory; without weights, as for random ones, the config is taken as it is.
        quantization: see weight_kinds.

    Raises:
        CheckpointError: there are fewer layers than config.json says, or the weights cannot be read.
        ConfigError: `quantization` does not fit the checkpoint.
    """
    if load_format == "orbax" or (load_format == "auto" and is_converted(path)):
        return _as_converted(path, config, quantization)
    kinds = weight_kinds(quantization, config.quantization, config.weight_kinds)
    config = dataclasses.replace(config, weight_kinds=kinds)
    if load_format == "dummy" or not has_safetensors(path):
        return config
    with Checkpoint(path) as checkpoint:
        tensors = by_name(checkpoint)
        _check_layers(path, tensors, config)
        config = dataclasses.replace(config, stored_dtype=_dtype_of_matrices(tensors))
        if config.quantization is not None and kinds.kind is not None:
            config = dataclasses.replace(config, weight_kinds=_kinds_of_tensors(tensors, config, kinds.kind))
        embedding, head = tensors.get(EMBEDDING), tensors.get(HEAD)
        if not _is_tied(config) or embedding is None or head is None:
            return config
        if _are_equal(checkpoint, embedding, head):
            return config
    return _untied(path, config)


def _as_converted(path: Path, config: ModelConfig, quantization: str | None) -> ModelConfig:
    if not (path / MANIFEST).is_file():
        return config  # whoever loads it says what is missing
    manifest = Manifest.read(path)
    _check_layers(path, manifest.parameters, config)
    if quantization is not None:
        asked = weight_kinds(quantization, config.quantization, config.weight_kinds)
        if asked.kind != manifest.kinds.kind:
            found = "not quantized" if manifest.kinds.kind is None else f"quantized to {manifest.kinds.kind.name}"
            raise CheckpointError(
                f"--quantization {quantization}: the weights in {path} are {found}; leave the flag out, or convert "
                f"again with `palladio convert --quantization {quantization}`"
            )
    if _is_tied(config) and any(name.startswith(f"{HEAD_TABLE}.") for name in manifest.parameters):
        config = _untied(path, config)
    return dataclasses.replace(config, weight_kinds=manifest.kinds, converted_dtype=manifest.dtype)


def _kinds_of_tensors(tensors: Mapping[str, StoredTensor], config: ModelConfig, kind: WeightKind) -> WeightKinds:
    def is_plain(name: str) -> bool | None:
        tensor = tensors.get(name)
        return None if tensor is None else tensor.dtype != FLOAT8

    if all(tensor.dtype != FLOAT8 for tensor in tensors.values()):
        return WeightKinds()
    num_experts = 1 if config.experts is None else config.experts.num_experts
    rules = find_family(config.architecture).weights
    dense = dense_weights(rules, config.num_layers, is_plain, num_experts)
    return WeightKinds(kind, dense)


def _dtype_of_matrices(tensors: Mapping[str, StoredTensor]) -> DType:
    found = {tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1}
    return "bfloat16" if found == {"BF16"} else "float16" if found == {"F16"} else "float32"


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
