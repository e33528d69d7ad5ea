"""Facts that a checkpoint's tensors add to its config.json before a model is built: its layers, and its head."""

import dataclasses
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from palladio.model.base.errors import CheckpointError, MissingKeysError
from palladio.model.config.config import DType, ModelConfig
from palladio.model.config.quantization_config import kinds_of
from palladio.model.config.quantization_flag import MADE, QuantizationFlag
from palladio.model.config.registry import find_family
from palladio.model.config.weight_rules import WeightRule
from palladio.model.formats.stored_format import StoredMatrix
from palladio.model.loading.layout.weight_transforms import rows_of_parts
from palladio.model.loading.manifest import MANIFEST, Manifest, is_converted
from palladio.model.loading.readers.cache_scales import agree_with_scales, with_cache_scales, with_plain_names
from palladio.model.loading.readers.checkpoint import Checkpoint, has_weights
from palladio.model.loading.readers.safetensors_file import StoredTensor
from palladio.model.loading.readers.tensor_names import EMBEDDING, HEAD, by_name
from palladio.model.loading.stored_matrices import find_matrix
from palladio.model.loading.stored_weights import CLASS_BIAS, HEAD_TABLE
from palladio.model.weights.kinds import WeightKind, WeightKinds

LoadFormat = Literal["auto", "safetensors", "orbax", "dummy"]

_LAYER = re.compile(r"(?:model\.)?(?:encoder\.|transformer\.)?(?:layers?|h)\.(\d+)\.")
_ROWS = 4096  # of two tables that are compared at a time

logger = logging.getLogger(__name__)


def agree_with_weights(
    path: Path, config: ModelConfig, load_format: LoadFormat, quantization: str | None = None
) -> ModelConfig:
    """Return the config of the model that a checkpoint holds. The tensors say which weights are quantized. If
    config.json ties the head to the embedding, but the checkpoint has both with different values, the head is untied,
    as in transformers.

    Args:
        path: model directory; without weights, as for random ones, the config stays as it is.
        quantization: see QuantizationFlag.

    Raises:
        CheckpointError: there are fewer layers than config.json says, or the weights cannot be read.
        ConfigError: `quantization` does not fit the checkpoint.
    """
    if load_format == "orbax" or (load_format == "auto" and is_converted(path)):
        return _as_converted(path, config, quantization)
    if load_format == "dummy" or not has_weights(path):
        return config.with_quantization(quantization)
    with Checkpoint(path) as checkpoint:
        tensors = by_name(checkpoint)
        _check_layers(path, tensors, config)
        config = dataclasses.replace(config, stored_dtype=_dtype_of_matrices(tensors))
        config = _with_kinds(path, config, quantization, tensors)
        config = _with_class_bias(config, tensors)
        config = agree_with_scales(path, config, checkpoint, with_plain_names(tensors))
        embedding, head = tensors.get(EMBEDDING), tensors.get(HEAD)
        if not _is_tied(config) or embedding is None or head is None:
            return config
        if _are_equal(checkpoint, embedding, head):
            return config
    return _untied(path, config)


def _as_converted(path: Path, config: ModelConfig, quantization: str | None) -> ModelConfig:
    if not (path / MANIFEST).is_file():
        return config  # the loader reports what is missing
    manifest = Manifest.read(path)
    _check_layers(path, manifest.parameters, config)
    kinds = manifest.kinds if quantization is None else _agreed(path, config, quantization, manifest.kinds)
    config = _with_class_bias(config, manifest.parameters)
    if _is_tied(config) and any(name.startswith(f"{HEAD_TABLE}.") for name in manifest.parameters):
        config = _untied(path, config)
    if any(name.endswith(".attention.key_scale") for name in manifest.parameters):
        config = with_cache_scales(config)
    return dataclasses.replace(config, weight_kinds=kinds, converted_dtype=manifest.dtype)


def _agreed(path: Path, config: ModelConfig, quantization: str, stored: WeightKinds) -> WeightKinds:
    """Return the kinds of a converted checkpoint's weights under --quantization.

    Raises:
        CheckpointError: the flag asks for other numbers than it has.
    """
    found = "not quantized" if stored.kind is None else f"quantized to {stored.kind.name}"
    message = f"--quantization {quantization}: the weights in {path} are {found}; leave the flag out"
    flag = QuantizationFlag.of(quantization)
    if config.quantization is None and flag.name not in MADE:  # a format, of which nothing is left
        raise CheckpointError(message)
    asked = config.with_quantization(quantization).weight_kinds
    numbers = [each.with_activation_bits(16) for each in (asked, stored)]  # as stored
    if numbers[0] == numbers[1] and flag.modules:
        return asked
    if asked.kind is None and stored.kind is None:
        return stored
    if asked.kind is not None and not flag.modules:
        storage, bits = asked.kind.storage, asked.kind.activation_bits
        kinds = stored.with_activation_bits(bits)
        # The same numbers may have groups, as those of GGUF files, or zero points.
        fits = all((each.storage, each.activation_bits) == (storage, bits) for each in kinds.all)
        if numbers[0].kind == numbers[1].kind or (stored.kind is not None and fits):
            return kinds
    raise CheckpointError(f"{message}, or convert again with `palladio convert --quantization {quantization}`")


def _with_class_bias(config: ModelConfig, names: Collection[str]) -> ModelConfig:
    """Add the bias of classes if the checkpoint has one.

    Args:
        names: names of tensors, or of parameters; the bias has the same name in both.
    """
    classifier = config.classifier
    if classifier is None or classifier.tokens or classifier.has_bias or CLASS_BIAS not in names:
        return config
    return dataclasses.replace(config, classifier=dataclasses.replace(classifier, has_bias=True))


def _with_kinds(
    path: Path, config: ModelConfig, quantization: str | None, tensors: Mapping[str, StoredTensor]
) -> ModelConfig:
    """Return the config with the kinds of weights that the tensors and the flag ask for.

    Raises:
        ConfigError: the flag does not fit the checkpoint.
    """
    if config.quantization is None:
        return config.with_quantization(quantization)
    kinds, is_quantized = _kinds_of_tensors(path, tensors, config)
    if is_quantized or quantization is None or QuantizationFlag.of(quantization).name not in MADE:
        return config.with_quantization(quantization, kinds)
    # A GGUF file in F16, say: its format is that of quantized ones, and none of its matrices is.
    plain = dataclasses.replace(config, quantization=None).with_quantization(quantization)
    return dataclasses.replace(plain, quantization=config.quantization)


def _kinds_of_tensors(path: Path, tensors: Mapping[str, StoredTensor], config: ModelConfig) -> tuple[WeightKinds, bool]:
    """Return the kinds of a model's weights by its tensors, and whether any matrix is quantized."""
    of_weights: dict[str, list[StoredMatrix]] = {}  # quantized matrices, by the weight that they fill

    def kind(rule: WeightRule, name: str) -> tuple[WeightKind | None] | None:
        parts = rows_of_parts(rule.transform, config)
        matrix = find_matrix(name, tensors, config.quantization, parts=parts)
        if matrix is None:
            return None
        if matrix.is_quantized:
            layer = _LAYER.match(name)
            of_weights.setdefault(rule.param.format(layer=layer and layer[1]), []).append(matrix)
        return (matrix.kind,)

    num_experts = 1 if config.experts is None else config.experts.num_experts
    kinds = kinds_of(find_family(config.family).weights, config.num_layers, kind, num_experts)
    widened = [matrix for name, matrices in of_weights.items() if kinds.of(name) is None for matrix in matrices]
    ordered = [matrix for matrix in widened if matrix.kind is None]
    if ordered:
        logger.warning(
            "%s: %d matrices have their inputs in an order of their own (act order, desc_act) and become dense: %.3f "
            "GB in bfloat16. A checkpoint without act order keeps its bits",
            path,
            len(ordered),
            _wide_bytes(ordered) / 1e9,
        )
    others = [matrix for matrix in widened if matrix.kind is not None]
    if others:
        logger.warning(
            "%s: %d quantized matrices are parts of projections whose parts differ in kind, such as %s, and become "
            "dense: %.3f GB in bfloat16",
            path,
            len(others),
            others[0].names[0],
            _wide_bytes(others) / 1e9,
        )
    return kinds, bool(of_weights)


def _wide_bytes(matrices: Iterable[StoredMatrix]) -> int:
    """Return the bytes of the matrices in bfloat16."""
    return 2 * sum(math.prod(matrix.shape) for matrix in matrices)


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
    """Check that the checkpoint has all layers of config.json. Otherwise an excess layer would be noticed only after
    all layers are built."""
    found = 1 + max((int(match[1]) for match in map(_LAYER.match, names) if match), default=-1)
    if found < config.num_layers:
        raise MissingKeysError(
            f"{path}: num_hidden_layers is {config.num_layers} in config.json, but the checkpoint has {found} layers",
            f"tensor of layer {found}",
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
