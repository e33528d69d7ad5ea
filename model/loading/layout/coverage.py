"""The check that tensors fill a parameter. Gaps would stay zeros without any error."""

from collections.abc import Sequence

import numpy as np

from palladio.model.loading.layout.relayout import LogicalAxes
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.layout.tensor_part import Box

_Span = tuple[int, int]  # first, and last but one


def covers(boxes: Sequence[Box], shape: tuple[int, ...], axes: LogicalAxes, layout: TensorLayout) -> bool:
    """Return whether blocks of stored tensors fill each place of a parameter, except padding, exactly once.

    Args:
        shape, axes: those of the parameter as laid out.
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
    """Return the blocks of a parameter that are no padding; they do not overlap."""
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
            case "kv_heads":  # and the slots behind it: queries, key and value, and then gates if there are any
                has_gates = shape[dimension + 1] > G + 2
                cuts = [
                    ((number, number + 1), slots)
                    for number, place in enumerate(layout.places)
                    if place is not None
                    for slots in ((0, place.num_queries), (G, G + 2), (G + 2, G + 2 + place.num_queries))[
                        : 2 + has_gates
                    ]
                ]
            case "state_heads":  # and the group behind it, if there is one
                has_group = axes[dimension + 1 : dimension + 2] == ("state_group",)
                cuts = [
                    ((number, number + 1), (0, place.num_queries))[: 1 + has_group]
                    for number, place in enumerate(layout.state_places)
                    if place is not None
                ]
            case "state_group":
                continue
            case "state_values":
                assert layout.stored.delta is not None
                assert layout.config.delta is not None
                size, group = layout.stored.delta.value_size, layout.config.delta.group
                cuts = [
                    ((number * group * size, (number * group + place.num_queries) * size),)
                    for number, place in enumerate(layout.state_places)
                    if place is not None
                ]
            case _:
                cuts = [((0, layout.sizes(axis)[0]),)]
        blocks = [(*block[:dimension], *cut, *block[dimension + len(cut) :]) for block in blocks for cut in cuts]
    return blocks
