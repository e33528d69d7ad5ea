"""Weights from safetensors: assembles each parameter, slice by slice, from the tensors that its table names.

A host reads what its own devices need, several parameters in parallel. Besides the devices' copy, host memory never
holds more of them than the largest parameter takes (on CPU the devices' memory is the host's).
"""

import collections
import concurrent.futures
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from palladio.model.base.errors import CheckpointError, MissingKeysError
from palladio.model.config.config import ModelConfig
from palladio.model.config.registry import find_family
from palladio.model.config.weight_rules import ExpertStorage, WeightRule
from palladio.model.config.weight_tables import CACHE_SCALES, CLASSES
from palladio.model.formats.stored_format import StoredMatrix
from palladio.model.loading.layout.coverage import covers
from palladio.model.loading.layout.parameters import Parameters, Slot, known_form, scale_form
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.layout.tensor_part import Part
from palladio.model.loading.layout.weight_transforms import part_of, rows_of_parts
from palladio.model.loading.load_log import draft_layers, log_load
from palladio.model.loading.placing import Slices, Target
from palladio.model.loading.read_back import ReadBack
from palladio.model.loading.readers.cache_scales import with_plain_names, without_scales
from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.safetensors_file import Array
from palladio.model.loading.readers.tensor_names import EMBEDDING, HEAD, by_name
from palladio.model.loading.stored_matrices import (
    check_kind,
    expect_plain,
    find_matrix,
    host_bytes,
    read_matrix,
    stored_tensors,
    zero_biases,
)
from palladio.model.weights.scaled import Scaled

CLASS_BIAS = "score.bias"
HEAD_TABLE = "lm_head.table"  # the weight that HEAD fills, in models that have one of their own
MAX_NAMES_SHOWN = 5
_STACKED = ".experts.gate_up_proj"  # how the name of a layer's experts ends where they are one tensor
READERS = 4  # parameters that are read side by side, where they fit
BUFFER_ALIGNMENT = 64  # bytes; what XLA:CPU asks of a buffer


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of a part of a slot.

    Attributes:
        parts: the position of the source in each of the slot's parameters.
        matrix: the stored tensor, or the tensors that make up one matrix.
    """

    parts: tuple[Part, ...]
    matrix: StoredMatrix


def stored_arrays(
    path: Path,
    layout: TensorLayout,
    parameters: Parameters,
    mesh: Mesh,
    only: Collection[str] | None = None,
    read_back: ReadBack | None = None,
) -> Iterator[tuple[str, jax.Array]]:
    """Read a checkpoint, and yield the path and the values of each parameter.

    Args:
        only: names of the slots to read; None: all.
        read_back: gets samples of what is placed.

    Raises:
        CheckpointError: the files do not hold exactly what the config promises.
    """
    with Checkpoint(path) as checkpoint:
        plan, slots = _plan(path, layout, parameters, checkpoint), parameters.slots
        if only is None or next(iter(plan)) in only:  # once of a conversion, which wants some at a time
            matrices = ((slots[name], [source.matrix for source in sources]) for name, sources in plan.items())
            log_load(path, layout.stored, checkpoint, by_name(checkpoint), matrices)
        readers = [
            _Reader(checkpoint, sources, slots[name], mesh, read_back)
            for name, sources in plan.items()
            if only is None or name in only
        ]
        with concurrent.futures.ThreadPoolExecutor(READERS, thread_name_prefix="load") as pool:
            yield from _in_order(pool, readers)


class _Reader:
    """Reader of one slot: reads all slices of its parameters that this host's devices need."""

    def __init__(
        self, checkpoint: Checkpoint, sources: list[Source], slot: Slot, mesh: Mesh, read_back: ReadBack | None
    ) -> None:
        self._checkpoint = checkpoint
        self._sources = sources
        self._slot = slot
        self._read_back = read_back
        self._targets = [Target(path, param, mesh) for path, param in slot.params.items()]
        self.num_bytes = sum(target.num_bytes for target in self._targets)
        if isinstance(slot.weight, Scaled):  # whole tensors are read, which may be larger than what is made of them
            read = sum(map(host_bytes, {source.matrix for source in sources}))
            # Numbers of 4 bits are a byte each until they are on the device.
            self.num_bytes = read + self.num_bytes if slot.weight.kind.bits < 8 else max(self.num_bytes, read)

    def read(self) -> list[Slices]:
        """Read the slices of each parameter into host memory. Several readers may read at once."""
        stored = functools.lru_cache(self._stored)
        read = [
            {bounds: _assemble(stored, self._sources, number, target, index) for bounds, index in target.slices.items()}
            for number, target in enumerate(self._targets)
        ]
        stored.cache_clear()  # views of the file, which has to close
        for source in self._sources:
            self._release(source.matrix)
        return read

    def place(self, read: list[Slices]) -> Iterator[tuple[str, jax.Array]]:
        """Place the parameters on the devices, and yield the path and the values of each."""
        for target, slices in zip(self._targets, read, strict=True):
            yield target.path, target.place(slices, self._read_back)

    def _stored(self, stored: StoredMatrix) -> tuple[Array, ...]:
        """Read a stored matrix, and return its part of each parameter."""
        matrix = read_matrix(self._checkpoint, stored)
        made = self._slot.read(matrix)
        if matrix.scales is None and len(made) > 1 and not np.isfinite(made[1]).all():
            raise CheckpointError(
                f"{stored.tensors[0]} has weights that are NaN or infinite, of which no 8-bit or 4-bit numbers can be "
                "made: the checkpoint is damaged, download it again"
            )
        if len(stored.tensors) > 1 or not np.may_share_memory(made[0], matrix.values):
            self._release(stored)  # before the slices are made
        return made

    def _release(self, stored: StoredMatrix) -> None:
        for tensor in stored_tensors(stored):
            self._checkpoint.release(tensor)


def _in_order(pool: concurrent.futures.Executor, readers: list[_Reader]) -> Iterator[tuple[str, jax.Array]]:
    limit = max((reader.num_bytes for reader in readers), default=0)
    waiting = collections.deque(readers)
    under_way: collections.deque[tuple[_Reader, concurrent.futures.Future[list[Slices]]]] = collections.deque()
    num_bytes = 0
    while waiting or under_way:
        while waiting and num_bytes + waiting[0].num_bytes <= limit:
            reader = waiting.popleft()
            num_bytes += reader.num_bytes
            under_way.append((reader, pool.submit(reader.read)))
        reader, future = under_way.popleft()
        placed = list(reader.place(future.result()))
        del future  # and the slices that it holds
        num_bytes -= reader.num_bytes
        yield from placed


def _assemble(
    stored: Callable[[StoredMatrix], tuple[Array, ...]],
    sources: list[Source],
    number: int,
    target: Target,
    index: tuple[slice, ...],
) -> Array:
    """Assemble the slice `index` of one parameter of a slot from its sources.

    Args:
        stored: returns the parts of a stored matrix, one for each parameter; caches matrices that several slices read.
        number: number of the parameter in the slot.
    """
    out = _aligned_empty(
        [len(range(size)[where]) for size, where in zip(target.shape, index, strict=True)], target.dtype, target.order
    )
    parts = [source.parts[number] for source in sources]
    if sum(math.prod(box.shape) for part in parts for box in part.boxes) < math.prod(target.shape):
        out.fill(0)  # the rest is padding
    for source, part in zip(sources, parts, strict=True):
        if part.touches(index):
            part.copy(stored(source.matrix)[number], index, out)
    return out


def _aligned_empty(shape: list[int], dtype: np.dtype, order: tuple[int, ...]) -> Array:
    """Allocate memory that jax on CPU uses without a copy. With another alignment it would copy, and the load would
    peak higher.

    Args:
        order: order of the dimensions in memory.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + BUFFER_ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % BUFFER_ALIGNMENT
    in_memory = raw[start : start + size].view(dtype).reshape([shape[number] for number in order])
    return in_memory.transpose([order.index(number) for number in range(len(order))])


def _plan(path: Path, layout: TensorLayout, parameters: Parameters, checkpoint: Checkpoint) -> dict[str, list[Source]]:
    """Find the sources of every slot, and check all of them before the first is read.

    Raises:
        CheckpointError: tensors are missing, unexpected or have another shape, or no tensor fills a parameter.
    """
    config = layout.stored
    family, left = find_family(config.family), by_name(checkpoint)
    if config.tie_word_embeddings and EMBEDDING not in left and HEAD in left:
        left[EMBEDDING] = left.pop(HEAD)  # tied either way
    drafts = draft_layers(config)
    left = with_plain_names({name: tensor for name, tensor in left.items() if not name.startswith(drafts)})
    if not any(name.endswith(".attention.key_scale") for name in parameters.slots):
        left = without_scales(left)
    storage: ExpertStorage = "stacked" if any(_STACKED in name for name in left) else "split"
    slots = parameters.slots
    plan: dict[str, list[Source]] = {name: [] for name in slots}
    missing: list[str] = []
    used: set[str] = set()
    found: dict[str, StoredMatrix | None] = {}  # several rules may read of one
    for rule in (*family.weights, *_class_rules(config, left), *CACHE_SCALES):
        for layer, expert in rule_places(rule, config, slots, storage):
            name, param = rule.name.format(layer=layer, expert=expert), rule.param.format(layer=layer)
            if name not in found:
                found[name] = find_matrix(
                    name,
                    left,
                    config.quantization,
                    inputs_first=rule.inputs_first,
                    parts=rows_of_parts(rule.transform, config),
                )
            matrix = found[name]
            if matrix is None:
                missing.append(name)
                continue
            used.update(matrix.names)
            part = part_of(rule.transform, known_form(slots[param].values)[0], layout, expert)
            if rule.either_way and matrix.is_transposed and matrix.shape != part.file_shape == matrix.tensors[0].shape:
                matrix = found[name] = find_matrix(name, left, config.quantization)
                assert matrix is not None
            shapes = matrix.shape, part.file_shape
            if shapes[0] != shapes[1]:
                shown = [shape[:-2] + shape[:-3:-1] if matrix.is_transposed else shape for shape in shapes]
                raise CheckpointError(
                    f"shape mismatch: {matrix.tensors[0]} has shape {shown[0]}, config.json requires {shown[1]}"
                )
            scales = (form for each in slots[param].params.values() if (form := scale_form(each)) is not None)
            check_kind(slots[param], matrix)
            plan[param].append(Source((part, *(part.of_scales(form) for form in scales)), matrix))
    used.update(
        zero_biases(checkpoint, left, [name for name, matrix in found.items() if matrix and matrix.is_quantized], used)
    )
    ignored = re.compile("|".join(family.ignored + (re.escape(HEAD),) * (HEAD_TABLE not in slots)))
    unexpected = [str(tensor) for name, tensor in left.items() if name not in used and not ignored.fullmatch(name)]
    if config.quantization is None and (missing or unexpected):
        expect_plain(left)
    if missing:
        some = _some(missing)
        raise MissingKeysError(f"missing keys in checkpoint {path}: {some} (required by config.json)", some)
    if unexpected:
        raise CheckpointError(
            f"unexpected keys in checkpoint {path}: {_some(unexpected)} (not used by this config.json)"
        )
    _check_coverage(path, layout, parameters, plan)
    return plan


def _class_rules(config: ModelConfig, names: Collection[str]) -> tuple[WeightRule, ...]:
    """Return the rules of the classification head, if there is one.

    Args:
        names: names of the checkpoint's tensors.
    """
    if config.encoder is not None:
        return ()  # the family's own
    if config.classifier is None or not config.classifier.tokens:
        return CLASSES
    return (WeightRule(HEAD if HEAD in names else EMBEDDING, "score.table", "label_rows"),)


def _check_coverage(path: Path, layout: TensorLayout, parameters: Parameters, plan: Mapping[str, list[Source]]) -> None:
    """Check that tensors fill every parameter.

    Raises:
        CheckpointError: tensors leave parts of parameters that are no padding.
    """
    known: dict[tuple[object, ...], bool] = {}  # layers are alike
    unfilled = []
    for name, slot in parameters.slots.items():
        boxes = tuple(box for source in plan[name] for box in source.parts[0].boxes)
        kind = (boxes, *known_form(slot.values))
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
    rule: WeightRule, config: ModelConfig, slots: Collection[str], storage: ExpertStorage
) -> Iterator[tuple[int, int]]:
    """Yield the layer and the expert of each tensor that a rule names; 0 where it has no number.

    Args:
        config: the config of the checkpoint.
        slots: names of the slots to fill.
        storage: storage of experts in the checkpoint.
    """
    if rule.storage not in (None, storage):
        return
    for layer in range(config.num_layers) if "{layer}" in rule.name else (0,):
        if rule.param.format(layer=layer) in slots:
            numbers = range(config.experts.num_experts) if config.experts and "{expert}" in rule.name else (0,)
            yield from ((layer, expert) for expert in numbers)


def _some(names: list[str]) -> str:
    more = f", and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
