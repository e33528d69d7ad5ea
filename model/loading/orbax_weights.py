"""Converted checkpoints: Orbax's format, for fast restarts on any mesh.

    OUT/config.json, tokenizer files    copied unchanged
    OUT/parameters/<group>/             one Orbax checkpoint a layer: written under another name, then renamed
    OUT/palladio_checkpoint.json        written last: the parameters, and the size and CRC-32 of every file

So an interrupted conversion has no palladio_checkpoint.json, and resumes where it stopped. Parameters are stored in the
layout for one device; the split over devices is chosen when they are read.
"""

import concurrent.futures
import functools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from palladio.model.base.errors import CheckpointError
from palladio.model.base.sharding import ShardingRules, make_mesh
from palladio.model.config.config import DType, ModelConfig
from palladio.model.files.folder_files import find_files
from palladio.model.files.small_files import MAX_TABLE_BYTES, read_object
from palladio.model.loading.layout.nibbles import is_packed, pack, packed_shape, unpack
from palladio.model.loading.layout.parameters import (
    Parameters,
    as_known,
    known_dtype,
    known_form,
    rest_form,
    scale_form,
)
from palladio.model.loading.layout.relayout import LogicalAxes, relayout
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.manifest import MANIFEST, PARAMETERS, Manifest, StoredParameter, settings_of
from palladio.model.loading.readers.file_sums import size_and_crc
from palladio.model.loading.stored_weights import stored_arrays
from palladio.model.weights.rest_form import RestForm
from palladio.model.weights.scaled import ScaleForm

_COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_NOT_COPIED = "*.index.json"
_CHUNK_BYTES = 64 * 2**20  # of an array; a device reads each chunk that overlaps its part, whole
_USUAL_CHUNKS = 16  # of an array, if they have more than
_LEAST_CHUNK_BYTES = 2**20
_SMALLEST_CUT_BYTES = 16 * 2**10  # Orbax copies chunks of up to 1 KiB twice


def convert(source: Path, out: Path, config: ModelConfig, dtype: DType, progress: Callable[[int, int], None]) -> None:
    """Convert a model directory or a GGUF file. Groups that an earlier run finished are kept.

    Args:
        dtype: dtype of the parameters in `out` that are not quantized.
        progress: called with (groups done, groups in all).

    Raises:
        CheckpointError: `source` does not hold exactly what the config promises, or `out` was begun with another dtype
            or quantization.
        OSError: `out` cannot be written.
    """
    mesh = make_mesh(1, jax.local_devices(backend="cpu"))
    layout = TensorLayout.of(config, 1)
    parameters = Parameters.of(layout, jnp.dtype(dtype), mesh)
    params = parameters.by_path
    groups = _groups(parameters.slots)
    (out / PARAMETERS).mkdir(parents=True, exist_ok=True)
    _begin(out, settings_of(config.weight_kinds, dtype))
    for pattern in _COPIED:
        for file in find_files(source, pattern):
            if not file.match(_NOT_COPIED):
                shutil.copyfile(file, out / file.name)
    (out / MANIFEST).unlink(missing_ok=True)  # until all of it is there again
    for done, (group, names) in enumerate(groups.items()):
        progress(done, len(groups))
        target = out / PARAMETERS / group
        if not target.is_dir():
            forms = {path: known_form(param) for path, (_, param) in params.items()}
            read = stored_arrays(source, layout, parameters, mesh, only=names)
            arrays = {path: as_known(array, params[path][1]) for path, array in read}
            arrays |= {name: pack(each) for name, each in arrays.items() if is_packed(each.shape, each.dtype)}
            _save(target, arrays, {path: forms[path][1] for path in arrays})
    progress(len(groups), len(groups))
    stored = {name: StoredParameter.of(name, parameters, layout) for name in params}
    files = sorted(file for group in groups for file in (out / PARAMETERS / group).rglob("*") if file.is_file())
    with concurrent.futures.ThreadPoolExecutor() as pool:
        sums = pool.map(size_and_crc, files)
        known = {str(file.relative_to(out)): both for file, both in zip(files, sums, strict=True)}
    Manifest(stored, config.weight_kinds, dtype, known).write(out)


def _begin(out: Path, settings: Mapping[str, Any]) -> None:
    """Record the settings of a conversion, for a run that resumes it.

    Raises:
        CheckpointError: an earlier run had other settings.
    """
    note = out / f"{MANIFEST}.unfinished"
    try:
        earlier = [read_object(out, name, MAX_TABLE_BYTES) or settings for name in (MANIFEST, note.name)]
    except CheckpointError as error:
        raise CheckpointError(f"{out} has a manifest that cannot be read: {error}; use an empty directory") from error
    for content in earlier:
        differing = [name for name, value in settings.items() if content.get(name) != value]
        if differing:
            raise CheckpointError(
                f"{out} holds a conversion with another {differing[0]}: give an empty directory, or convert with the "
                "same --dtype and --quantization as before"
            )
    note.write_text(json.dumps(settings), encoding="utf-8")


def restored_arrays(
    path: Path, layout: TensorLayout, parameters: Parameters, mesh: Mesh
) -> Iterator[tuple[str, jax.Array]]:
    """Read a checkpoint that `convert` wrote, and yield the path and the values of each parameter.

    Raises:
        CheckpointError: it is damaged, incomplete, or of another model.
    """
    manifest, params = Manifest.read(path), parameters.by_path
    stored = {name: StoredParameter.of(name, parameters, layout) for name in params}
    manifest.check_parameters(path, stored)
    manifest.check(path)
    for group, names in _groups(params).items():
        wanted = {}
        for name in names:
            shape = stored[name].shape
            sharding = _sharding_of_stored(shape, stored[name].axes, mesh)
            dtype = known_dtype(params[name][1])
            wanted[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            if is_packed(shape, dtype):
                sharding = _sharding_of_stored(packed_shape(shape), stored[name].axes, mesh)
                wanted[name] = jax.ShapeDtypeStruct(packed_shape(shape), jnp.uint8, sharding=sharding)
        for name, array in _restore(path / PARAMETERS / group, wanted).items():
            param = params[name][1]
            form = rest_form(param)
            if array.dtype != known_dtype(param):
                array = _unpacker(_sharding_of_stored(stored[name].shape, stored[name].axes, mesh))(array)
            if array.shape != param.shape or form is not None:  # what has its size is laid out as it was
                array = _placer(stored[name].axes, layout, mesh, scale_form(param), form)(array)
            yield name, array


@functools.lru_cache(maxsize=32)
def _unpacker(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Return a function that unpacks 4-bit numbers, compiled once for all layers."""
    return jax.jit(unpack, out_shardings=sharding)


@functools.lru_cache(maxsize=32)
def _placer(
    axes: LogicalAxes, layout: TensorLayout, mesh: Mesh, form: ScaleForm | None, rest: RestForm | None
) -> Callable[[jax.Array], jax.Array]:
    """Return a function that lays out a parameter, compiled once for all layers."""

    def place(array: jax.Array) -> jax.Array:
        laid_out = relayout(array, axes, layout, form)
        return laid_out if rest is None else rest.laid(laid_out)

    return jax.jit(place, out_shardings=ShardingRules().sharding(mesh, axes if rest is None else rest.laid_axes()))


def _sharding_of_stored(shape: tuple[int, ...], axes: LogicalAxes, mesh: Mesh) -> NamedSharding:
    """Return the sharding to read a parameter with: its final one, except for dimensions that do not divide yet."""
    rules = ShardingRules()
    divisible = tuple(
        axis if size % rules.num_parts(mesh, axis) == 0 else None for axis, size in zip(axes, shape, strict=True)
    )
    return rules.sharding(mesh, divisible)


def _groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of parameters or slots: one group for each layer, and one for each part outside the layers."""
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        groups.setdefault(".".join(parts[:2]) if parts[0] == "layers" else parts[0], []).append(name)
    return groups


def _chunks(shape: tuple[int, ...], itemsize: int, axes: LogicalAxes) -> tuple[int, tuple[int, ...]]:
    """Choose chunks, cut along the axes that devices will share. Two devices that need the same chunk both read it.

    Orbax cuts a named axis into single places, of which a matrix would have thousands. So an axis is named only where
    its places are large, or where Orbax by itself would cut another one, the longest.

    Returns:
        The maximum bytes of a chunk, and the named axes.
    """
    shared = tuple(number for number, axis in enumerate(axes) if axis is not None)
    size = math.prod(shape) * itemsize
    chunk = size // max(1, math.prod(shape[number] for number in shared))
    is_longest = bool(shape) and shape.index(max(shape)) in shared
    if chunk >= (_LEAST_CHUNK_BYTES if is_longest else _SMALLEST_CUT_BYTES):
        return _CHUNK_BYTES, shared
    return min(_CHUNK_BYTES, max(_LEAST_CHUNK_BYTES, size // _USUAL_CHUNKS)), ()


def _save(target: Path, arrays: dict[str, jax.Array], axes: Mapping[str, LogicalAxes]) -> None:
    """Save arrays as one Orbax checkpoint, in the chunks of `_chunks`."""
    import orbax.checkpoint as ocp  # noqa: PLC0415

    # Weights hardly compress, and unpacking them would take longer than reading them.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    with ocp.Checkpointer(handler) as writer:  # writes elsewhere, then renames
        options = {
            name: ocp.SaveArgs(chunk_byte_size=size, shard_axes=cut)
            for name, (size, cut) in (
                (name, _chunks(array.shape, array.dtype.itemsize, axes[name])) for name, array in arrays.items()
            )
        }
        writer.save(target.absolute(), args=ocp.args.PyTreeSave(arrays, save_args=options))


def _restore(source: Path, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    import orbax.checkpoint as ocp  # noqa: PLC0415

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        how = ocp.checkpoint_utils.construct_restore_args(wanted)
        try:
            restored: dict[str, jax.Array] = reader.restore(
                source.absolute(), args=ocp.args.PyTreeRestore(wanted, restore_args=how)
            )
        except (ValueError, KeyError, OSError) as error:
            raise CheckpointError(f"{source} does not match {MANIFEST}: {error}") from error
    return restored
