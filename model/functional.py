"""A model as the flat tuple of arrays that jit takes. A call handles fewer Python objects, so a step costs less host
time."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.module import Context
from palladio.model.config.config import ModelConfig
from palladio.model.decoder import CausalLM
from palladio.model.encoder import Encoder
from palladio.pallas_kernels.choice import Kernels

Model = CausalLM | Encoder


def make_model(config: ModelConfig, context: Context, kernels: Kernels, mesh: Mesh) -> Model:
    """Make the modules of a model.

    Args:
        config: the config as laid out over the mesh, see TensorLayout.
    """
    return (CausalLM if config.encoder is None else Encoder)(config, context, kernels, mesh)


@dataclasses.dataclass(frozen=True)
class ModelStructure:
    """A model without its arrays. Static: close over it in a traced function.

    Attributes:
        graphdef: the modules.
        treedef: the structure of the state that holds the arrays.
    """

    graphdef: nnx.GraphDef
    treedef: jax.tree_util.PyTreeDef


def flatten_model(model: Model) -> tuple[ModelStructure, tuple[jax.Array, ...]]:
    """Split a model into its structure and its arrays, in a fixed order."""
    graphdef, state = nnx.split(model)
    leaves, treedef = jax.tree.flatten(state)
    return ModelStructure(graphdef, treedef), tuple(leaves)


def unflatten_model(structure: ModelStructure, leaves: tuple[jax.Array, ...]) -> Model:
    """Rebuild the model; `leaves` may be tracers."""
    model: Model = nnx.merge(structure.graphdef, jax.tree.unflatten(structure.treedef, leaves))
    return model


@dataclasses.dataclass(frozen=True)
class LogitsHead:
    """The part of a flat model that makes logits. Programs that only sample or classify take no other arrays.

    Attributes:
        structure: the structure of the whole model.
        num_leaves: the number of arrays of the whole model.
        indices: positions among these of the arrays of `CausalLM.head` and of the bias of logits.
    """

    structure: ModelStructure
    num_leaves: int
    indices: tuple[int, ...]

    @classmethod
    def of(cls, structure: ModelStructure, num_leaves: int) -> Self:
        numbered = unflatten_model(structure, tuple(range(num_leaves)))  # type: ignore[arg-type]  # in place of arrays
        parts = (part for part in (numbered.head, numbered.head_bias) if part is not None)
        return cls(structure, num_leaves, tuple(leaf for part in parts for leaf in jax.tree.leaves(nnx.state(part))))

    def select(self, leaves: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Select the head's arrays from those of the whole model."""
        return tuple(leaves[i] for i in self.indices)

    def logits(self, head: tuple[jax.Array, ...], hidden: jax.Array, num_valid_tokens: int) -> jax.Array:
        """Compute logits: hidden [R, D] → f32[R, V], as CausalLM.logits; `head` comes from `select`."""
        return self._model(head).logits(hidden, num_valid_tokens)

    def classify(self, head: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
        """Compute class logits: hidden [R, D] → f32[R, L], as CausalLM.classify; `head` comes from `select`."""
        return self._model(head).classify(hidden)

    def _model(self, head: tuple[jax.Array, ...]) -> Model:
        """Rebuild the model with the arrays of the head only."""
        known = dict(zip(self.indices, head, strict=True))
        leaves = tuple(known.get(i) for i in range(self.num_leaves))
        return unflatten_model(self.structure, leaves)  # type: ignore[arg-type]


def num_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Return the bytes of an array on a device, where two 4-bit numbers share a byte."""
    return -(-math.prod(shape) * jax.dtypes.itemsize_bits(jnp.dtype(dtype)) // 8)
