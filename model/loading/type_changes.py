"""What the types of a GGUF file became in memory, in one line of the log: users know the types, and memory has others."""

import collections
import math
from collections.abc import Iterable

import jax.numpy as jnp

from palladio.model.formats.stored_format import StoredMatrix
from palladio.model.functional import num_bytes
from palladio.model.loading.parameters import Slot
from palladio.model.loading.stored_matrices import stored_tensors


def type_changes(filled: Iterable[tuple[Slot, Iterable[StoredMatrix]]]) -> str:
    """For each type, and each form that it got: how many tensors, and their bytes in the file and over all devices.

    Args:
        filled: each slot, and the matrices that fill it.
    """
    names: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    stored: collections.Counter[tuple[str, str]] = collections.Counter()
    in_memory: collections.Counter[tuple[str, str]] = collections.Counter()
    for slot, matrices in filled:
        size = sum(num_bytes(param.shape, param.dtype) for param in slot.params.values())
        form = slot.weight.kind_name if slot.weight is not None else jnp.dtype(slot.values.dtype).name
        distinct = set(matrices)
        numbers = sum(math.prod(matrix.shape) for matrix in distinct)
        for matrix in distinct:
            change = matrix.tensors[0].dtype, form
            for tensor in stored_tensors(matrix):
                names[change].add(tensor.name.partition("[")[0])  # experts of a layer are one tensor there
                stored[change] += tensor.stop - tensor.start
            in_memory[change] += size * math.prod(matrix.shape) // numbers
    return "; ".join(
        f"{len(names[of, form])} tensor{'s' if len(names[of, form]) > 1 else ''} {of} → {form} ({stored[of, form] / 1e6:.1f} → {in_memory[of, form] / 1e6:.1f} MB)"
        for (of, form), _ in in_memory.most_common()
    )
