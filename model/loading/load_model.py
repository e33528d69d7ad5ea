"""Loading a model: safetensors or a converted checkpoint into sharded arrays, or random weights made on the device."""

import collections
import functools
import math
from collections.abc import Callable
from pathlib import Path

import jax
from flax import nnx
from jax.experimental.layout import Format
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import ModelConfig
from palladio.model.functional import Model, num_bytes
from palladio.model.loading.dummy_weights import random_arrays
from palladio.model.loading.layout.parameters import Parameters, placement
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.manifest import is_converted
from palladio.model.loading.orbax_weights import restored_arrays
from palladio.model.loading.read_back import ReadBack
from palladio.model.loading.stored_config import LoadFormat
from palladio.model.loading.stored_weights import stored_arrays
from palladio.model.weights.scaled import Scaled
from palladio.model.weights.weight import Weight
from palladio.pallas_kernels.choice import Kernels

Progress = Callable[[int, int], None]


def load_model(
    path: Path,
    config: ModelConfig,
    *,
    dtype: DTypeLike,
    mesh: Mesh,
    load_format: LoadFormat = "auto",
    kernels: Kernels = Kernels(),
    weights_dtype: DTypeLike | None = None,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    reads_back: bool = False,
) -> Model:
    """Build the model and fill it.

    Args:
        path: model directory; not read for dummy weights.
        config: the config that `agree_with_weights` returned.
        dtype: dtype of activations.
        mesh: devices; ShardingRules place each parameter on them.
        load_format: "dummy" makes random weights; "auto" reads a converted checkpoint where there is one, else
            safetensors.
        kernels: the kernels that the model runs on.
        weights_dtype: dtype of parameters that are not quantized, whatever the files hold; None: `dtype`.
        seed: seed of dummy weights; the same seed gives the same weights.
        progress: called with (parameters done, parameters in all) after each.
        reads_back: compare samples of what each device holds with what was read of safetensors or GGUF.

    Raises:
        CheckpointError: the files do not hold exactly what the config promises.
        ReadBackError: a device holds something else than was read.
    """
    layout = TensorLayout.over(config, mesh)
    parameters = Parameters.of(layout, dtype, mesh, kernels, weights_dtype)
    read_back = ReadBack() if reads_back else None
    if load_format == "dummy":
        arrays = random_arrays(parameters, layout, mesh, seed)
    elif load_format == "orbax" or (load_format == "auto" and is_converted(path)):
        arrays = restored_arrays(path, layout, parameters, mesh)
    else:
        arrays = stored_arrays(path, layout, parameters, mesh, read_back=read_back)
    loaded, left = [], dict(parameters.by_path)
    placed: dict[str, jax.Array] = {}
    for done, (name, array) in enumerate(arrays, start=1):
        keys, param = left.pop(name)
        place = placement(param, mesh)
        if isinstance(place, Format):
            array = _mover(place)(array)
        loaded.append((keys, param.replace(array)))
        placed[name] = array
        progress(done, len(parameters.by_path))
    if left:
        raise CheckpointError(
            f"missing keys in checkpoint {path}: {len(left)} parameters have no values, such as {min(left)}"
        )
    if read_back is not None:
        read_back.check(placed)
    model: Model = nnx.merge(parameters.structure, nnx.from_flat_state(loaded))
    return model


@functools.lru_cache(maxsize=32)
def _mover(place: Format) -> Callable[[jax.Array], jax.Array]:
    """Return a function that moves an array to `place`, compiled once for all layers. device_put would need all of the
    array on this host."""
    return jax.jit(lambda array: array, out_shardings=place)


def num_parameters(model: Model) -> int:
    """Count the parameters of the model as published: without the scales of quantized weights."""
    weights = {keys for keys, node in nnx.iter_graph(model) if isinstance(node, Weight)}
    params = nnx.to_flat_state(nnx.state(model))
    return sum(math.prod(param.shape) for keys, param in params if keys[:-1] not in weights or keys[-1] == "values")


def describe_weights(model: Model, dtype: DTypeLike) -> list[str]:
    """Describe the weights in lines for the log.

    Args:
        dtype: dtype of activations.
    """
    kinds = "; ".join(f"{kind}: {size / 1e9:.3f} GB" for kind, size in weight_bytes(model).items())
    return [f"Weights: {line}" for line in (kinds, *unrounded(model), *widenings(model, dtype))]


def weight_bytes(model: Model) -> dict[str, int]:
    """Return the bytes over all devices by kind of weight, or, for parameters that are not quantized, by dtype; the
    largest first."""
    weights = {keys: node for keys, node in nnx.iter_graph(model) if isinstance(node, Weight)}
    found: collections.Counter[str] = collections.Counter()
    for keys, param in nnx.to_flat_state(nnx.state(model)):
        weight = weights.get(keys[:-1])
        found[str(param.dtype) if weight is None else weight.kind_name] += num_bytes(param.shape, param.dtype)
    return dict(found.most_common())


def unrounded(model: Model) -> list[str]:
    """List weights whose products do not round activations to 8 bits although the flag asks for it: a line for each
    kind and reason."""
    nodes = [node for _, node in nnx.iter_graph(model) if isinstance(node, Scaled) and node.why_unrounded is not None]
    found = collections.Counter((node.kind_name, node.why_unrounded) for node in nodes)
    return [
        f"{count} matrices ({kind}) do not have activations rounded to 8 bits, since {why}"
        for (kind, why), count in found.items()
    ]


def widenings(model: Model, dtype: DTypeLike) -> list[str]:
    """List weights with scales that products dequantize as a whole, because no kernel takes them: a line for each kind.

    Args:
        dtype: dtype of activations.
    """
    found: dict[tuple[str, str, str], list[int]] = {}
    looked_up = None if model.head is model.embedding else model.embedding.table  # of which rows alone are widened
    for _, node in nnx.iter_graph(model):
        if isinstance(node, Scaled) and node is not looked_up and (copy := node.widening(dtype)) is not None:
            num_bytes, name, why = copy
            found.setdefault((node.kind_name, name, why), []).append(num_bytes)
    return [
        f"{len(sizes)} matrices ({kind}) are widened in each product: {max(sizes) / 1e9:.3f} GB of {name} at a time on "
        f"a device, {sum(sizes) / 1e9:.3f} GB in a step, since {why}"
        for (kind, name, why), sizes in found.items()
    ]


def abstract_model(
    config: ModelConfig,
    *,
    dtype: DTypeLike,
    mesh: Mesh,
    kernels: Kernels = Kernels(),
    weights_dtype: DTypeLike | None = None,
) -> Model:
    """Build the model of `load_model` with a ShapeDtypeStruct for each array. The arguments are the same."""
    parameters = Parameters.of(TensorLayout.over(config, mesh), dtype, mesh, kernels, weights_dtype)
    placed = []
    for keys, param in parameters.by_path.values():
        array = jax.ShapeDtypeStruct(param.shape, param.dtype, sharding=placement(param, mesh))
        placed.append((keys, param.replace(array)))
    model: Model = nnx.merge(parameters.structure, nnx.from_flat_state(placed))
    return model
