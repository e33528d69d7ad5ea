"""What each transform of the weight tables means: where a file's tensor lies in a parameter, and in which order."""

import dataclasses

import numpy as np

from palladio.model.family import Transform
from palladio.model.safetensors_file import Array


@dataclasses.dataclass(frozen=True)
class Part:
    """A file's tensor as part of a parameter.

    Attributes:
        file_shape: shape that the file's tensor must have.
        split: the tensor's dimensions taken apart: its view has this shape…
        order: …and then its dimensions in this order. Reading through the view copies nothing.
        fused: (dimension, start, stop) of the parameter that this part fills; None: it is all of the parameter.
    """

    file_shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    fused: tuple[int, int, int] | None = None

    def view(self, stored: Array) -> Array:
        """The stored tensor with the parameter's dimensions."""
        return stored.reshape(self.split).transpose(self.order)

    def copy(self, stored: Array, index: tuple[slice, ...], out: Array) -> None:
        """Copies what the slice `index` of the parameter needs of this part into `out`, that slice."""
        source, target = list(index), [slice(None)] * out.ndim
        if self.fused is not None:
            dimension, start, stop = self.fused
            source[dimension], target[dimension] = slice(None), slice(start, stop)  # a fused dimension is never split
        np.copyto(out[tuple(target)], self.view(stored)[tuple(source)], casting="unsafe")


def part_of(transform: Transform, shape: tuple[int, ...]) -> Part:
    """The part that a transform makes of a parameter of this shape."""
    match transform:
        case "vector" | "rows":
            return Part(shape, shape, tuple(range(len(shape))))
        case "matrix":  # files hold [out, in]
            return Part(shape[::-1], shape[::-1], (1, 0))
        case "gate" | "up":
            D, _, F = shape
            slot = ("gate", "up").index(transform)
            return Part((F, D), (1, F, D), (2, 0, 1), (1, slot, slot + 1))
        case "gate_bias" | "up_bias":
            _, F = shape
            slot = ("gate_bias", "up_bias").index(transform)
            return Part((F,), (1, F), (0, 1), (0, slot, slot + 1))
        case "query" | "key" | "value":
            D, K, heads, H = shape
            start, stop = _head_slots(transform, heads)
            size = stop - start
            return Part((K * size * H, D), (K, size, H, D), (3, 0, 1, 2), (2, start, stop))
        case "query_bias" | "key_bias" | "value_bias":
            K, heads, H = shape
            start, stop = _head_slots(transform.removesuffix("_bias"), heads)
            size = stop - start
            return Part((K * size * H,), (K, size, H), (0, 1, 2), (1, start, stop))


def _head_slots(what: str, heads: int) -> tuple[int, int]:
    """Each kv head's query heads come first, then its key, then its value."""
    group = heads - 2
    return {"query": (0, group), "key": (group, group + 1), "value": (group + 1, heads)}[what]
