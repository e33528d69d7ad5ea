"""Part: the position of a file's tensor in a parameter, as blocks to copy."""

import dataclasses

import numpy as np

from palladio.model.loading.readers.safetensors_file import Array
from palladio.model.weights.scaled import ScaleForm


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A block that a parameter shares with a stored tensor.

    Attributes:
        shape: shape of the block, all dimensions of the parameter.
        target: its start in the parameter.
        source: its start in the stored tensor's view.
    """

    shape: tuple[int, ...]
    target: tuple[int, ...]
    source: tuple[int, ...]

    def without(self, dimension: int) -> "Box":
        """Return the block of a parameter that lacks a dimension."""
        sides = (self.shape, self.target, self.source)
        return Box(*(side[:dimension] + side[dimension + 1 :] for side in sides))

    def in_groups(self, dimension: int, group: int) -> "Box":
        """Return the block where a dimension counts groups. It must begin with a group, in the parameter and in the
        stored tensor."""
        start, first = self.target[dimension], self.source[dimension]
        assert start % group == first % group == 0, "a group is cut in two"

        def counted(side: tuple[int, ...]) -> tuple[int, ...]:
            return (*side[:dimension], -(-side[dimension] // group), *side[dimension + 1 :])

        return Box(counted(self.shape), counted(self.target), counted(self.source))

    def touches(self, index: tuple[slice, ...]) -> bool:
        """Return whether the block overlaps the slice `index` of the parameter."""
        bounds = (_overlap(*both) for both in zip(self.target, self.shape, index, strict=True))
        return all(start < stop for start, stop in bounds)

    def copy(self, view: Array, index: tuple[slice, ...], out: Array) -> None:
        """Copy the overlap of the block with the slice `index` of the parameter into `out`, that slice."""
        read, write = [], []
        for size, target, source, where in zip(self.shape, self.target, self.source, index, strict=True):
            first = where.start or 0
            start, stop = _overlap(target, size, where)
            if start >= stop:
                return
            read.append(slice(start - target + source, stop - target + source))
            write.append(slice(start - first, stop - first))
        np.copyto(out[tuple(write)], view[tuple(read)], casting="unsafe")


def _overlap(target: int, size: int, where: slice) -> tuple[int, int]:
    """Return the start and the stop of an overlap; start is not less than stop if there is none."""
    stop = target + size if where.stop is None else min(target + size, where.stop)
    return max(target, where.start or 0), stop


@dataclasses.dataclass(frozen=True)
class Part:
    """A file's tensor as part of a parameter.

    Attributes:
        file_shape: the shape that the file's tensor must have.
        split: the tensor's dimensions taken apart: its view has this shape…
        order: …and then its dimensions in this order. Reading through the view copies nothing.
        boxes: blocks to copy from the view.
        chosen: index into the tensor's dimensions after `split`, before `order`.
    """

    file_shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    boxes: tuple[Box, ...]
    chosen: tuple[int | slice, ...] = ()

    def of_scales(self, form: ScaleForm) -> "Part":
        """Return the part of a weight's scales that the same tensor's scales fill, where this is a part of its values.
        The tensor's last dimension, the inputs, becomes that of groups, or is dropped."""
        dimension, last = form.inputs, len(self.order) - 1
        assert self.order[dimension] == last, "files have the inputs last"
        if form.group is None:
            boxes = dict.fromkeys(box.without(dimension) for box in self.boxes)
            order = tuple(number for number in self.order if number != last)
            return Part(self.file_shape[:-1], self.split[:-1], order, tuple(boxes), self.chosen)
        num_groups = -(-self.split[-1] // form.group)
        boxes = dict.fromkeys(box.in_groups(dimension, form.group) for box in self.boxes)
        file_shape, split = (*self.file_shape[:-1], num_groups), (*self.split[:-1], num_groups)
        return Part(file_shape, split, self.order, tuple(boxes), self.chosen)

    def touches(self, index: tuple[slice, ...]) -> bool:
        """Return whether the slice `index` of the parameter needs any of this part."""
        return any(box.touches(index) for box in self.boxes)

    def copy(self, stored: Array, index: tuple[slice, ...], out: Array) -> None:
        """Copy what the slice `index` of the parameter needs of this part into `out`, that slice."""
        view = stored.reshape(self.split)[self.chosen].transpose(self.order)
        for box in self.boxes:
            box.copy(view, index, out)
