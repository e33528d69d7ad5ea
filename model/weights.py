"""Loading a model: from safetensors slice by slice into sharded arrays, or random weights made on the device.

Host memory holds one parameter at a time beside what the devices hold (on CPU the devices' memory is the host's).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.checkpoint import Checkpoint
from palladio.model.config import ModelConfig, QuantizationConfig
from palladio.model.decoder import CausalLM
from palladio.model.dummy_weights import Params, random_arrays
from palladio.model.errors import CheckpointError
from palladio.model.family import Condition
from palladio.model.registry import find_family
from palladio.model.safetensors_file import Array, StoredTensor
from palladio.model.sharding import ShardingRules, num_shards
from palladio.model.tensor_layout import TensorLayout
from palladio.model.weight_transforms import Part, part_of
from palladio.pallas_kernels.choice import Kernels

Progress = Callable[[int, int], None]
SCALE_SUFFIXES = ("_scale_inv", "_scale")  # both are multiplied, whatever the name says
MAX_NAMES_SHOWN = 5
BUFFER_ALIGNMENT = 64  # bytes; what XLA:CPU asks of a buffer


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


def load_model(
    path: Path,
    config: ModelConfig,
    *,
    dtype: DTypeLike,
    mesh: Mesh,
    load_format: Literal["auto", "safetensors", "dummy"] = "auto",
    kernels: Kernels = Kernels(),
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> CausalLM:
    """Builds the model and fills it.

    Args:
        path: model directory; not read for dummy weights.
        config: what the model is.
        dtype: of parameters and activations, whatever the files hold.
        mesh: devices; ShardingRules place each parameter on them.
        load_format: "dummy" makes random weights; anything else reads safetensors.
        kernels: what it runs on.
        seed: of dummy weights; the same seed gives the same weights.
        progress: called with (parameters done, parameters in all) after each.

    Raises:
        CheckpointError: the files do not hold exactly what the config promises.
    """
    layout = TensorLayout.of(config, num_shards(mesh))
    graphdef, state = nnx.split(nnx.eval_shape(lambda: CausalLM(layout.config, dtype, kernels, mesh, nnx.Rngs(0))))
    params = {".".join(map(str, keys)): (keys, param) for keys, param in nnx.to_flat_state(state)}
    arrays = (
        random_arrays(params, layout, mesh, seed)
        if load_format == "dummy"
        else _stored_arrays(path, layout, params, mesh)
    )
    loaded = []
    for done, (name, array) in enumerate(arrays, start=1):
        keys, param = params[name]
        loaded.append((keys, param.replace(array)))
        progress(done, len(params))
    model: CausalLM = nnx.merge(graphdef, nnx.from_flat_state(loaded))
    return model


def abstract_model(config: ModelConfig, *, dtype: DTypeLike, mesh: Mesh, kernels: Kernels = Kernels()) -> CausalLM:
    """The model that `load_model` makes with the same arguments, with a ShapeDtypeStruct for each array."""
    layout = TensorLayout.of(config, num_shards(mesh))
    graphdef, state = nnx.split(nnx.eval_shape(lambda: CausalLM(layout.config, dtype, kernels, mesh, nnx.Rngs(0))))
    rules, placed = ShardingRules(), []
    for keys, param in nnx.to_flat_state(state):
        sharding = rules.sharding(mesh, param.get_metadata()["logical_axes"])
        placed.append((keys, param.replace(jax.ShapeDtypeStruct(param.shape, param.dtype, sharding=sharding))))
    model: CausalLM = nnx.merge(graphdef, nnx.from_flat_state(placed))
    return model


def _stored_arrays(path: Path, layout: TensorLayout, params: Params, mesh: Mesh) -> Iterator[tuple[str, jax.Array]]:
    rules, quantization = ShardingRules(), layout.stored.quantization
    with Checkpoint(path) as checkpoint:
        plan = _plan(path, layout, params, checkpoint)
        for name, sources in plan.items():
            param = params[name][1]
            sharding = rules.sharding(mesh, param.get_metadata()["logical_axes"])
            read = functools.partial(_assemble, checkpoint, sources, quantization, param.shape, param.dtype)
            yield name, jax.make_array_from_callback(param.shape, sharding, read)
            for source in sources:
                checkpoint.release(source.tensor)


def _assemble(
    checkpoint: Checkpoint,
    sources: list[Source],
    quantization: QuantizationConfig | None,
    shape: tuple[int, ...],
    dtype: np.dtype,
    index: tuple[slice, ...],
) -> Array:
    """The slice `index` of a parameter, put together from its parts."""
    out = _aligned_empty([len(range(size)[where]) for size, where in zip(shape, index, strict=True)], dtype)
    if sum(math.prod(box.shape) for source in sources for box in source.part.boxes) < math.prod(shape):
        out.fill(0)  # the rest is padding
    for source in sources:
        stored = checkpoint.read(source.tensor)
        if source.scale is not None:
            stored = _dequantized(stored, checkpoint.read(source.scale), quantization, dtype)
        source.part.copy(stored, index, out)
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
        CheckpointError: tensors are missing, unexpected or have another shape.
    """
    config = layout.stored
    family, left = find_family(config.architecture), _by_name(checkpoint)
    has_table = config.has_head and not config.tie_word_embeddings
    conditions: dict[Condition, bool] = {
        "always": True,
        "qkv_bias": config.qkv_bias,
        "output_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "untied": has_table,
    }
    plan: dict[str, list[Source]] = {name: [] for name in params}
    missing: list[str] = []
    for rule in family.weights:
        if not conditions[rule.condition]:
            continue
        for layer in range(config.num_layers) if "{layer}" in rule.name else (0,):
            name, param = rule.name.format(layer=layer), rule.param.format(layer=layer)
            tensor = left.pop(name, None)
            if tensor is None:
                missing.append(name)
                continue
            part = part_of(rule.transform, params[param][1].shape, layout)
            if tensor.shape != part.file_shape:
                raise CheckpointError(f"{tensor} has shape {tensor.shape}; config.json asks for {part.file_shape}")
            plan[param].append(Source(part, tensor, _find_scale(tensor, config.quantization, left)))
    ignored = re.compile("|".join(family.ignored + (r"lm_head\.weight",) * (not has_table)))
    unexpected = [str(tensor) for name, tensor in left.items() if not ignored.fullmatch(name)]
    if missing:
        raise CheckpointError(f"{path} has no tensor {_some(missing)}; config.json asks for it")
    if unexpected:
        raise CheckpointError(f"{path} holds what config.json does not ask for: {_some(unexpected)}")
    return plan


def _find_scale(
    tensor: StoredTensor, quantization: QuantizationConfig | None, left: dict[str, StoredTensor]
) -> StoredTensor | None:
    """Takes a float8 tensor's scale out of `left`; None: the tensor is not quantized."""
    if tensor.dtype != "F8_E4M3" or quantization is None:
        return None
    found = [left.pop(tensor.name + suffix) for suffix in SCALE_SUFFIXES if tensor.name + suffix in left]
    if not found:
        raise CheckpointError(f"{tensor} is float8 but {tensor.name + SCALE_SUFFIXES[0]} is missing")
    scale = found[0]
    if quantization.block_size is None:
        expected = [(), (1,), (1, 1)]
    else:
        expected = [tuple(-(-n // size) for n, size in zip(tensor.shape, quantization.block_size, strict=True))]
    if scale.shape not in expected:
        raise CheckpointError(f"{scale} has shape {scale.shape}; {tensor.name} {tensor.shape} asks for {expected[0]}")
    return scale


def _by_name(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """The tensors, named as in a checkpoint of the model with its head: one without leaves the prefix out."""
    tensors = checkpoint.tensors
    if "embed_tokens.weight" not in tensors:
        return dict(tensors)
    return {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in tensors.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
