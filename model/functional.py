"""A model as a flat tuple of arrays: what jit takes. Fewer Python objects a call, so less host time a step."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

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


@dataclasses.dataclass(frozen=True)
class LogitsHead:
    """The part of a flat model that makes logits: programs that only sample, or classify, take no other arrays.

    Attributes:
        structure: of the whole model.
        num_leaves: of the whole model.
        indices: which of them `CausalLM.head` has.
    """

    structure: ModelStructure
    num_leaves: int
    indices: tuple[int, ...]

    @classmethod
    def of(cls, structure: ModelStructure, num_leaves: int) -> Self:
        numbered = unflatten_model(structure, tuple(range(num_leaves)))  # type: ignore[arg-type]  # in place of arrays
        indices = () if numbered.head is None else tuple(jax.tree.leaves(nnx.state(numbered.head)))
        return cls(structure, num_leaves, indices)

    def select(self, leaves: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """The head's arrays, out of the whole model's."""
        return tuple(leaves[i] for i in self.indices)

    def logits(self, head: tuple[jax.Array, ...], hidden: jax.Array, num_valid_tokens: int) -> jax.Array:
        """hidden [R, D] → f32[R, V], see CausalLM.logits; `head` as `select` gives it."""
        return self._model(head).logits(hidden, num_valid_tokens)

    def classify(self, head: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
        """hidden [R, D] → f32[R, L], see CausalLM.classify; `head` as `select` gives it."""
        return self._model(head).classify(hidden)

    def _model(self, head: tuple[jax.Array, ...]) -> CausalLM:
        """With the head alone."""
        known = dict(zip(self.indices, head, strict=True))
        leaves = tuple(known.get(i) for i in range(self.num_leaves))
        return unflatten_model(self.structure, leaves)  # type: ignore[arg-type]


def num_bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Of an array on a device, where two numbers of 4 bits share a byte."""
    return -(-math.prod(shape) * jax.dtypes.itemsize_bits(jnp.dtype(dtype)) // 8)
