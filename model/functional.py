"""A model as a flat tuple of arrays: what jit takes. Fewer Python objects a call, so less host time a step."""

import dataclasses

import jax
from flax import nnx

from palladio.model.decoder import CausalLM


@dataclasses.dataclass(frozen=True)
class ModelStructure:
    """All of a model but its arrays. Static: close over it in a traced function.

    Attributes:
        graphdef: the modules.
        treedef: how the arrays lie in the state.
    """

    graphdef: nnx.GraphDef
    treedef: jax.tree_util.PyTreeDef


def flatten_model(model: CausalLM) -> tuple[ModelStructure, tuple[jax.Array, ...]]:
    """The structure, and the arrays in a fixed order."""
    graphdef, state = nnx.split(model)
    leaves, treedef = jax.tree.flatten(state)
    return ModelStructure(graphdef, treedef), tuple(leaves)


def unflatten_model(structure: ModelStructure, leaves: tuple[jax.Array, ...]) -> CausalLM:
    """The model again; `leaves` may be tracers."""
    model: CausalLM = nnx.merge(structure.graphdef, jax.tree.unflatten(structure.treedef, leaves))
    return model
