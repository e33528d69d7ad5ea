"""Whether the tensors of a checkpoint fill a parameter: what they leave would be zeros, and nobody would notice."""

from collections.abc import Sequence

import numpy as np

from palladio.model.loading.relayout import LogicalAxes
from palladio.model.loading.tensor_layout import TensorLayout
from palladio.model.loading.weight_transforms import Box

_Span = tuple[int, int]  # first, and last but one


def covers(boxes: Sequence[Box], shape: tuple[int, ...], axes: LogicalAxes, layout: TensorLayout) -> bool:
    """Whether blocks of stored tensors fill all of a parameter that is no padding, each place once.

    Args:
        shape, axes: of the parameter as it is laid out.
    """
    given = [tuple(zip(box.target, np.add(box.target, box.shape).tolist(), strict=True)) for box in boxes]
    wanted = _real_blocks(shape, axes, layout)
    # The blocks' edges cut the parameter into cells, of which each block has all or nothing.
    edges = [
        sorted({0, size, *(edge for block in (*given, *wanted) for edge in block[dimension])})
        for dimension, size in enumerate(shape)
    ]
    times = np.zeros((2, *(len(cuts) - 1 for cuts in edges)), np.int32)
    for which, blocks in enumerate((given, wanted)):
        for block in blocks:
            cells = tuple(
                slice(cuts.index(start), cuts.index(stop)) for cuts, (start, stop) in zip(edges, block, strict=True)
            )
            times[which][cells] += 1
    return bool((times[0] == times[1]).all())


def _real_blocks(shape: tuple[int, ...], axes: LogicalAxes, layout: TensorLayout) -> list[tuple[_Span, ...]]:
    """The blocks of a parameter that are no padding; they do not overlap."""
    blocks: list[tuple[_Span, ...]] = [tuple((0, size) for size in shape)]
    H, G = layout.stored.head_size, layout.group
    for dimension, axis in enumerate(axes):
        match axis:
            case None:
                continue
            case "heads" | "query_heads":
                size = H if axis == "heads" else 1
                cuts: list[tuple[_Span, ...]] = [
                    ((number * G * size, (number * G + place.num_queries) * size),)
                    for number, place in enumerate(layout.places)
                    if place is not None
                ]
            case "keys":
                cuts = [
                    ((number * H, (number + 1) * H),) for number, place in enumerate(layout.places) if place is not None
                ]
            case "kv_heads":  # and the slots behind it: queries, and then key and value
                cuts = [
                    ((number, number + 1), slots)
                    for number, place in enumerate(layout.places)
                    if place is not None
                    for slots in ((0, place.num_queries), (G, G + 2))
                ]
            case _:
                cuts = [((0, layout.sizes(axis)[0]),)]
        blocks = [(*block[:dimension], *cut, *block[dimension + len(cut) :]) for block in blocks for cut in cuts]
    return blocks
