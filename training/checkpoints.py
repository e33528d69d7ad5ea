"""A run's state on disk: everything that going on needs, in one file."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Leaves = tuple[jax.Array, ...]


@dataclasses.dataclass(slots=True)
class State:
    """Attributes:
    step: how many have been made.
    leaves: the model's arrays.
    optimizer: its state.
    goal: the last step, of a state whose learning rate falls; 0: it does not fall yet.
    """

    step: int
    leaves: Leaves
    optimizer: Any
    goal: int = 0


def save(path: Path, state: State) -> None:
    """Whole or not at all."""
    draft = path.with_suffix(".draft.npz")
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((state.leaves, state.optimizer))]
    with draft.open("wb") as file:
        np.savez(file, *arrays, step=np.int64(state.step), goal=np.int64(state.goal))
    os.replace(draft, path)


def load(path: Path, like: State) -> State:
    """Read a file of `save` for a state of the same structure; `like` may have no optimizer, then none is read.

    Raises:
        ValueError: the file is of another network.
    """
    leaves, structure = jax.tree.flatten((like.leaves, like.optimizer))
    with np.load(path) as file:
        arrays = [jnp.asarray(file[f"arr_{number}"]) for number in range(len(leaves))]
        step, goal = int(file["step"]), int(file["goal"])
    if [array.shape for array in arrays] != [leaf.shape for leaf in leaves]:
        raise ValueError(f"{path} is of another network; remove it, or use another folder")
    parameters, optimizer = jax.tree.unflatten(structure, arrays)
    return State(step, parameters, optimizer, goal)
