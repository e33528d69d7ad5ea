"""Log lines about a checkpoint that is read: unused tensors, and the conversion of the types of a GGUF file."""

import collections
import logging
import math
from collections.abc import Iterable
from pathlib import Path

import jax.numpy as jnp

from palladio.model.config.config import ModelConfig
from palladio.model.formats.stored_format import StoredMatrix
from palladio.model.functional import num_bytes
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.gguf.gguf_model import projectors_of
from palladio.model.loading.layout.parameters import Slot
from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.tensor_names import OTHER_PARTS
from palladio.model.loading.stored_matrices import stored_tensors

logger = logging.getLogger(__name__)


def log_load(
    path: Path,
    config: ModelConfig,
    checkpoint: Checkpoint,
    of_text: Iterable[str],
    filled: Iterable[tuple[Slot, Iterable[StoredMatrix]]],
) -> None:
    """Log unused tensors and the conversion of types.

    Args:
        config: the config of the checkpoint.
        of_text: names of the text model's tensors.
        filled: each slot, and the matrices that fill it.
    """
    parts = collections.Counter(match[1] for name in checkpoint.tensors if (match := OTHER_PARTS.match(name)))
    ignored = ", ".join(f"{count} of {part}" for part, count in sorted(parts.items()))
    if is_gguf(path):
        ignored = ", ".join(f"those of {file.name}" for file in projectors_of(path))
    if ignored:
        logger.warning(
            "%s: the model is served for text only; images and sound are not supported. Ignored tensors: %s",
            path,
            ignored,
        )
    drafts = draft_layers(config)
    num_drafts = sum(name.startswith(drafts) for name in of_text)
    if num_drafts:
        logger.info(
            "%s: layers from %d on predict tokens further ahead (num_nextn_predict_layers); they are not used. Ignored "
            "tensors: %d",
            path,
            config.num_layers,
            num_drafts,
        )
    if is_gguf(path):
        logger.info("GGUF: %s", _type_changes(filled))


def draft_layers(config: ModelConfig) -> tuple[str, ...]:
    """Return the name prefixes of the tensors of layers that predict tokens further ahead."""
    drafts = range(config.num_layers, config.num_layers + config.num_draft_layers)
    others = ("model.mtp_",) if drafts else ()  # as MiMo and ERNIE name them
    return (*(f"model.layers.{layer}." for layer in drafts), *others)


def _type_changes(filled: Iterable[tuple[Slot, Iterable[StoredMatrix]]]) -> str:
    """List each pair of stored type and loaded form: the number of tensors, and their bytes in the file and over all
    devices."""
    names: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    stored: collections.Counter[tuple[str, str]] = collections.Counter()
    in_memory: collections.Counter[tuple[str, str]] = collections.Counter()
    for slot, matrices in filled:
        size = sum(num_bytes(param.shape, param.dtype) for param in slot.params.values())
        form = slot.weight.kind_name if slot.weight is not None else jnp.dtype(slot.values.dtype).name
        distinct = set(matrices)
        numbers = sum(math.prod(matrix.shape) for matrix in distinct)
        for matrix in distinct:
            change = matrix.tensors[0].dtype, form
            for tensor in stored_tensors(matrix):
                names[change].add(tensor.name.partition("[")[0])  # experts of a layer are one tensor there
                stored[change] += tensor.stop - tensor.start
            in_memory[change] += size * math.prod(matrix.shape) // numbers
    changes = []
    for (of, form), size in in_memory.most_common():
        count, before = len(names[of, form]), stored[of, form]
        changes.append(f"{count} tensor{'s'[: count > 1]} {of} → {form} ({before / 1e6:.1f} → {size / 1e6:.1f} MB)")
    return "; ".join(changes)
