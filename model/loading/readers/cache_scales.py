"""Scales of an 8-bit KV cache in a checkpoint: their names, and the check that they can be used."""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import ModelConfig
from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.safetensors_file import FLOATS, StoredTensor
from palladio.model.spec.layer_spec import AttentionSpec, LayerSpec

_NAME = re.compile(r"(.*\.self_attn)\.(?:attn\.)?(?:([qkv])_proj\.)?(q|k|v|kv|output|prob|prob_output)_scale")
_KINDS = {"k": ("k",), "v": ("v",), "kv": ("k", "v")}

logger = logging.getLogger(__name__)


def with_plain_names(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return all tensors with scales of keys and values renamed to k_scale and v_scale, of shape [1], in their layer's
    self_attn, whatever tool wrote them. Scales of queries and probabilities, which stay unquantized, are dropped."""
    found = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        layer, projection, kind = match.groups()
        for each in _KINDS.get((projection or "") if kind == "output" else kind, ()):
            one = math.prod(tensor.shape) == 1
            found[f"{layer}.{each}_scale"] = dataclasses.replace(tensor, shape=(1,)) if one else tensor
    return found


def without_scales(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return all tensors except scales.

    Args:
        tensors: tensors by plain names.
    """
    return {name: tensor for name, tensor in tensors.items() if not _NAME.fullmatch(name)}


def agree_with_scales(
    path: Path, config: ModelConfig, checkpoint: Checkpoint, tensors: Mapping[str, StoredTensor]
) -> ModelConfig:
    """Return the config, with scales in its layers if the checkpoint has usable ones: for each layer one for all keys,
    and one for all values.

    Args:
        tensors: tensors by plain names.

    Raises:
        CheckpointError: a scale is no positive number.
    """
    scales = [tensor for name, tensor in tensors.items() if _NAME.fullmatch(name)]
    if not scales:
        return config
    if config.latent is not None or any(tensor.shape != (1,) for tensor in scales):
        logger.warning(
            "%s: %d scales of an 8-bit KV cache are not used, such as %s: only one for all keys of a layer and one for "
            "its values are supported. An 8-bit cache has scales of 1",
            path,
            len(scales),
            scales[0],
        )
        return config
    for tensor in scales:
        value = float(checkpoint.read(tensor).astype(np.float32)[0]) if tensor.dtype in FLOATS else math.nan
        if not (math.isfinite(value) and value > 0):
            raise CheckpointError(
                f"{tensor} is {value}; a scale of the KV cache must be a positive number: the checkpoint is damaged, "
                "download it again"
            )
    return with_cache_scales(config)


def with_cache_scales(config: ModelConfig) -> ModelConfig:
    """Return the model whose layers have scales of their cache."""

    def scaled(layer: LayerSpec) -> LayerSpec:
        spec = layer.attention
        if not isinstance(spec, AttentionSpec):
            return layer
        return dataclasses.replace(layer, attention=dataclasses.replace(spec, has_cache_scales=True))

    return dataclasses.replace(config, layers=tuple(map(scaled, config.layers)))
