"""Weights from safetensors: each parameter put together, slice by slice, from the tensors that its table names.

A host reads what its own devices need, several parameters side by side. Host memory holds no more of them at a time
than the largest one takes, beside what the devices hold (on CPU the devices' memory is the host's).
"""

import collections
import concurrent.futures
import dataclasses
import functools
import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from palladio.model.config import ModelConfig, QuantizationConfig
from palladio.model.errors import CheckpointError
from palladio.model.loading.checkpoint import Checkpoint
from palladio.model.loading.coverage import covers
from palladio.model.loading.parameters import Params
from palladio.model.loading.safetensors_file import Array, StoredTensor
from palladio.model.loading.tensor_layout import TensorLayout
from palladio.model.loading.weight_transforms import Part, part_of
from palladio.model.registry import find_family
from palladio.model.sharding import ShardingRules
from palladio.model.weight_rules import ExpertStorage, WeightRule

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_TABLE = "lm_head.table"  # the parameter that HEAD fills, in models that have one of their own
SCALE_SUFFIXES = ("_scale_inv", "_scale")  # both are multiplied, whatever the name says
MAX_NAMES_SHOWN = 5
_PREFIXES = ("language_model.model.", "model.language_model.", "")  # of the text model, other than model.
_OTHER_PARTS = re.compile(r"(?:model\.)?(vision_tower|vision_model|visual|multi_modal_projector|embed_vision)\.")
_STACKED = ".experts.gate_up_proj"  # how the name of a layer's experts ends where they are one tensor
READERS = 4  # parameters that are read side by side, where they fit
BUFFER_ALIGNMENT = 64  # bytes; what XLA:CPU asks of a buffer

logger = logging.getLogger(__name__)


_Bounds = tuple[tuple[int | None, int | None], ...]
_Slices = dict[_Bounds, Array]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a part of a parameter comes from.

    Attributes:
        part: how it lies in the parameter.
        tensor: the stored tensor.
        scale: of a quantized tensor.
    """

    part: Part
    tensor: StoredTensor
    scale: StoredTensor | None


def stored_arrays(
    path: Path, layout: TensorLayout, params: Params, mesh: Mesh, only: Collection[str] | None = None
) -> Iterator[tuple[str, jax.Array]]:
    """Name and values of each parameter.

    Args:
        only: names of those that are wanted; None: all.

    Raises:
        CheckpointError: the files do not hold exactly what the config promises.
    """
    rules = ShardingRules()
    with Checkpoint(path) as checkpoint:
        readers = {
            name: _Reader(
                checkpoint,
                layout.stored.quantization,
                sources,
                params[name][1],
                rules.sharding(mesh, params[name][1].get_metadata()["logical_axes"]),
            )
            for name, sources in _plan(path, layout, params, checkpoint).items()
            if only is None or name in only
        }
        with concurrent.futures.ThreadPoolExecutor(READERS, thread_name_prefix="load") as pool:
            yield from _in_order(pool, readers)


class _Reader:
    """Reads one parameter: all slices that this host's devices need."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: QuantizationConfig | None,
        sources: list[Source],
        param: nnx.Param,
        sharding: NamedSharding,
    ) -> None:
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._sources = sources
        self._shape, self._dtype = param.shape, param.dtype
        self._sharding = sharding
        indices = sharding.addressable_devices_indices_map(param.shape).values()
        self._slices = {_bounds(index): index for index in indices if index is not None}
        size = math.prod(sharding.shard_shape(param.shape)) * param.dtype.itemsize
        self.num_bytes = size * len(self._slices)

    def read(self) -> _Slices:
        """The slices, in host memory. Several readers may read at once."""
        plain = functools.lru_cache(functools.partial(_plain, self._checkpoint, self._quantization, self._dtype))
        slices = {
            bounds: _assemble(plain, self._sources, self._shape, self._dtype, index)
            for bounds, index in self._slices.items()
        }
        plain.cache_clear()  # views of the file, which has to close
        for source in self._sources:
            self._checkpoint.release(source.tensor)
        return slices

    def place(self, slices: _Slices) -> jax.Array:
        """On the devices; waits until they have it."""
        array = jax.make_array_from_callback(self._shape, self._sharding, lambda index: slices[_bounds(index)])
        array.block_until_ready()
        return array


def _bounds(index: tuple[slice, ...] | None) -> _Bounds:
    assert index is not None, "every device has a part"
    return tuple((where.start, where.stop) for where in index)


def _in_order(pool: concurrent.futures.Executor, readers: Mapping[str, _Reader]) -> Iterator[tuple[str, jax.Array]]:
    limit = max((reader.num_bytes for reader in readers.values()), default=0)
    waiting = collections.deque(readers.items())
    under_way: collections.deque[tuple[str, _Reader, concurrent.futures.Future[_Slices]]] = collections.deque()
    num_bytes = 0
    while waiting or under_way:
        while waiting and num_bytes + waiting[0][1].num_bytes <= limit:
            name, reader = waiting.popleft()
            num_bytes += reader.num_bytes
            under_way.append((name, reader, pool.submit(reader.read)))
        name, reader, future = under_way.popleft()
        array = reader.place(future.result())
        del future  # and the slices that it holds
        num_bytes -= reader.num_bytes
        yield name, array


def _plain(
    checkpoint: Checkpoint,
    quantization: QuantizationConfig | None,
    dtype: np.dtype,
    tensor: StoredTensor,
    scale: StoredTensor | None,
) -> Array:
    """A stored tensor without its scale."""
    stored = checkpoint.read(tensor)
    return stored if scale is None else _dequantized(stored, checkpoint.read(scale), quantization, dtype)


def _assemble(
    plain: Callable[[StoredTensor, StoredTensor | None], Array],
    sources: list[Source],
    shape: tuple[int, ...],
    dtype: np.dtype,
    index: tuple[slice, ...],
) -> Array:
    """The slice `index` of a parameter, put together from its parts; `plain` keeps what several slices read."""
    out = _aligned_empty([len(range(size)[where]) for size, where in zip(shape, index, strict=True)], dtype)
    if sum(math.prod(box.shape) for source in sources for box in source.part.boxes) < math.prod(shape):
        out.fill(0)  # the rest is padding
    for source in sources:
        if source.part.touches(index):
            source.part.copy(plain(source.tensor, source.scale), index, out)
    return out


def _aligned_empty(shape: list[int], dtype: np.dtype) -> Array:
    """Memory that jax on CPU takes over as it is; elsewhere aligned it would copy, and the load would peak higher."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + BUFFER_ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % BUFFER_ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _dequantized(stored: Array, scale: Array, quantization: QuantizationConfig | None, dtype: np.dtype) -> Array:
    """float8 [out, in] times its scale, in `dtype`."""
    block_size = quantization.block_size if quantization is not None else None
    rows, columns = block_size or stored.shape
    scale = scale.astype(np.float32).reshape(-(-stored.shape[0] // rows), -1)
    out = np.empty(stored.shape, dtype)
    for number, row_scale in enumerate(scale):
        band = slice(number * rows, (number + 1) * rows)
        factors = np.repeat(row_scale, columns)[: stored.shape[1]]
        out[band] = stored[band].astype(np.float32) * factors
    return out


def _plan(path: Path, layout: TensorLayout, params: Params, checkpoint: Checkpoint) -> dict[str, list[Source]]:
    """The sources of every parameter, all checked before the first is read.

    Raises:
        CheckpointError: tensors are missing, unexpected or have another shape, or no tensor fills a parameter.
    """
    config = layout.stored
    family, left = find_family(config.architecture), by_name(checkpoint)
    if config.tie_word_embeddings and EMBEDDING not in left and HEAD in left:
        left[EMBEDDING] = left.pop(HEAD)  # tied either way
    _warn_of_other_parts(path, checkpoint)
    storage: ExpertStorage = "stacked" if any(name.endswith(_STACKED) for name in left) else "split"
    plan: dict[str, list[Source]] = {name: [] for name in params}
    missing: list[str] = []
    used: set[str] = set()
    for rule in family.weights:
        for layer, expert in rule_places(rule, config, params, storage):
            name, param = rule.name.format(layer=layer, expert=expert), rule.param.format(layer=layer)
            tensor = left.get(name)
            if tensor is None:
                missing.append(name)
                continue
            used |= {name, *_scale_names(name, tensor, config.quantization, left)}
            part = part_of(rule.transform, params[param][1].shape, layout, expert)
            if tensor.shape != part.file_shape:
                raise CheckpointError(
                    f"shape mismatch: {tensor} has shape {tensor.shape}, config.json requires {part.file_shape}"
                )
            plan[param].append(Source(part, tensor, _find_scale(name, tensor, config.quantization, left)))
    ignored = re.compile("|".join(family.ignored + (re.escape(HEAD),) * (HEAD_TABLE not in params)))
    unexpected = [str(tensor) for name, tensor in left.items() if name not in used and not ignored.fullmatch(name)]
    if missing:
        raise CheckpointError(f"missing keys in checkpoint {path}: {_some(missing)} (required by config.json)")
    if unexpected:
        raise CheckpointError(
            f"unexpected keys in checkpoint {path}: {_some(unexpected)} (not used by this config.json)"
        )
    _check_coverage(path, layout, params, plan)
    return plan


def _check_coverage(path: Path, layout: TensorLayout, params: Params, plan: Mapping[str, list[Source]]) -> None:
    """
    Raises:
        CheckpointError: tensors leave (parts of) parameters that are no padding.
    """
    known: dict[tuple[object, ...], bool] = {}  # layers are alike
    unfilled = []
    for name, (_, param) in params.items():
        boxes = tuple(box for source in plan[name] for box in source.part.boxes)
        kind = (boxes, param.shape, param.get_metadata()["logical_axes"])
        if kind not in known:
            known[kind] = covers(*kind, layout)
        if not known[kind]:
            unfilled.append(name)
    if unfilled:
        raise CheckpointError(
            f"missing keys in checkpoint {path}: no tensor fills all of {_some(unfilled)}; the weight rules of "
            f"{layout.stored.architecture} are incomplete"
        )


def rule_places(
    rule: WeightRule, config: ModelConfig, params: Params, storage: ExpertStorage
) -> Iterator[tuple[int, int]]:
    """Layer and expert of each tensor that a rule names; 0 for what it does not number.

    Args:
        config: of the checkpoint.
        storage: how the checkpoint stores experts.
    """
    if rule.storage not in (None, storage):
        return
    for layer in range(config.num_layers) if "{layer}" in rule.name else (0,):
        if rule.param.format(layer=layer) in params:
            numbers = range(config.experts.num_experts) if config.experts and "{expert}" in rule.name else (0,)
            yield from ((layer, expert) for expert in numbers)


def _scale_names(
    name: str, tensor: StoredTensor, quantization: QuantizationConfig | None, tensors: Mapping[str, StoredTensor]
) -> list[str]:
    """Of a float8 tensor's scales, those that are there; none if it is not quantized."""
    if tensor.dtype != "F8_E4M3" or quantization is None:
        return []
    return [name + suffix for suffix in SCALE_SUFFIXES if name + suffix in tensors]


def _find_scale(
    name: str, tensor: StoredTensor, quantization: QuantizationConfig | None, tensors: Mapping[str, StoredTensor]
) -> StoredTensor | None:
    """A float8 tensor's scale; None: the tensor is not quantized.

    Args:
        name: of the tensor, as in `tensors`.
    """
    if tensor.dtype != "F8_E4M3" or quantization is None:
        return None
    found = [tensors[scale] for scale in _scale_names(name, tensor, quantization, tensors)]
    if not found:
        raise CheckpointError(f"{tensor} is float8, but its scale {tensor.name + SCALE_SUFFIXES[0]} is missing")
    if len(tensor.shape) != 2:
        raise CheckpointError(
            f"{tensor} is float8 with {len(tensor.shape)} dimensions; only 2-D weights can be dequantized"
        )
    scale = found[0]
    if quantization.block_size is None:
        expected = [(), (1,), (1, 1)]
    else:
        expected = [tuple(-(-n // size) for n, size in zip(tensor.shape, quantization.block_size, strict=True))]
    if scale.shape not in expected:
        raise CheckpointError(f"{scale} has shape {scale.shape}; {tensor.name} {tensor.shape} needs {expected[0]}")
    return scale


def by_name(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """The text model's tensors, named as in a checkpoint of it alone, with its head. A checkpoint without a head leaves
    the prefix out; one of a model that takes images has the text model as one of its parts."""
    tensors = checkpoint.tensors
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}embed_tokens.weight" in tensors), None)
    if prefix is None:
        return dict(tensors)
    named = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix) and not name.startswith("lm_head."):
            named[f"model.{name.removeprefix(prefix)}"] = tensor
        elif not _OTHER_PARTS.match(name):
            named[name.removeprefix("language_model.")] = tensor
    return named


def _warn_of_other_parts(path: Path, checkpoint: Checkpoint) -> None:
    parts = collections.Counter(match[1] for name in checkpoint.tensors if (match := _OTHER_PARTS.match(name)))
    if parts:
        logger.warning(
            "%s: the model is served for text only; images are not supported. Ignored tensors: %s",
            path,
            ", ".join(f"{count} of {part}" for part, count in sorted(parts.items())),
        )


def _some(names: list[str]) -> str:
    more = f", and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
