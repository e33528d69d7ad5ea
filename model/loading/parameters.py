"""The parameters of a model by name, before they have values."""

from collections.abc import Mapping

from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.decoder import CausalLM
from palladio.model.loading.tensor_layout import TensorLayout
from palladio.pallas_kernels.choice import Kernels

Params = Mapping[str, tuple[tuple[str | int, ...], nnx.Param]]
"""By dotted path: the path's keys and the parameter, abstract."""


def parameters_of(
    layout: TensorLayout, dtype: DTypeLike, mesh: Mesh, kernels: Kernels = Kernels()
) -> tuple[nnx.GraphDef, Params]:
    """The model's structure, and its parameters as they are laid out."""
    # Not by nnx.eval_shape: tracing a model of 126 layers takes half a minute.
    graphdef, state = nnx.split(CausalLM(layout.config, dtype, kernels, mesh, None))
    return graphdef, {".".join(map(str, keys)): (keys, param) for keys, param in nnx.to_flat_state(state)}
