"""Transforms of layers with a gated delta rule: the places of a file tensor's heads."""

from palladio.model.config.weight_rules import Transform
from palladio.model.loading.layout.tensor_layout import HeadPlace, TensorLayout
from palladio.model.loading.layout.tensor_part import Box, Part


def delta_part(transform: Transform, shape: tuple[int, ...], layout: TensorLayout) -> Part:
    """Return the part that a transform makes of a parameter, for K key heads with R value heads each. A file's tensor
    of channels has the queries of all heads, then all keys, then all values."""
    sizes = layout.stored.delta
    assert sizes is not None
    K, N, R, dk, dv = sizes.num_key_heads, sizes.num_value_heads, sizes.group, sizes.key_size, sizes.value_size
    places = [(number, place) for number, place in enumerate(layout.state_places) if place is not None]
    num_channels, first_value, D = 2 * K * dk + N * dv, 2 * K * dk, shape[0]
    match transform:
        case "delta_fused_keys":  # of each key head: query, key, the values of its heads, their gates
            width = 2 * dk + 2 * R * dv
            heads = [Box((D, 1, 2 * dk), (0, number, 0), (0, place.kv_head, 0)) for number, place in places]
            return Part((K * width, D), (K, width, D), (2, 0, 1), tuple(heads))
        case "delta_fused_values":
            width = 2 * dk + 2 * R * dv
            starts = {0: 2 * dk, dv: 2 * dk + R * dv}  # of values, and of gates
            boxes = [
                Box((D, 1, 1, dv), (0, number, i, to), (0, place.kv_head, 0, start + (head % R) * dv))
                for number, place in places
                for i, head in _value_heads(place)
                for to, start in starts.items()
            ]
            return Part((K * width, D), (K, 1, width, D), (3, 0, 1, 2), tuple(boxes))
        case "delta_fused_rates":
            boxes = [
                Box((D, 1, place.num_queries, 2), (0, number, 0, 0), (0, place.kv_head, place.first_query % R, 0))
                for number, place in places
            ]
            return Part((2 * N, D), (K, 2, R, D), (3, 0, 2, 1), tuple(boxes))
        case "delta_keys":
            boxes = [
                Box((D, 1, dk), (0, number, which * dk), (0, 0, (which * K + place.kv_head) * dk))
                for number, place in places
                for which in range(2)
            ]
            return Part((num_channels, D), (1, num_channels, D), (2, 0, 1), tuple(boxes))
        case "delta_values" | "delta_gates":
            rows, start, to = (num_channels, first_value, 0) if transform == "delta_values" else (N * dv, 0, dv)
            boxes = [
                Box((D, 1, 1, dv), (0, number, i, to), (0, 0, 0, start + head * dv))
                for number, place in places
                for i, head in _value_heads(place)
            ]
            return Part((rows, D), (1, 1, rows, D), (3, 0, 1, 2), tuple(boxes))
        case "delta_shares" | "delta_decays":
            which = ("delta_shares", "delta_decays").index(transform)
            boxes = [
                Box((D, 1, place.num_queries, 1), (0, number, 0, which), (0, 0, place.first_query, 0))
                for number, place in places
            ]
            return Part((N, D), (1, N, 1, D), (3, 0, 1, 2), tuple(boxes))
        case "delta_heads":
            boxes = [Box((1, place.num_queries), (number, 0), (0, place.first_query)) for number, place in places]
            return Part((N,), (1, N), (0, 1), tuple(boxes))
        case "delta_output":
            group = shape[0] // (len(layout.state_places) * dv)
            boxes = [
                Box((place.num_queries * dv, shape[1]), (number * group * dv, 0), (place.first_query * dv, 0))
                for number, place in places
            ]
            return Part((shape[1], N * dv), (shape[1], N * dv), (1, 0), tuple(boxes))
        case _:
            return _of_filter(transform, shape[-1], places, layout)


def _of_filter(transform: Transform, width: int, places: list[tuple[int, HeadPlace]], layout: TensorLayout) -> Part:
    """Return a part of the convolution [channels, 1, W]: parameters [K, 2·dk, W] and [K, R, dv, W]."""
    sizes = layout.stored.delta
    assert sizes is not None
    K, dk, dv = sizes.num_key_heads, sizes.key_size, sizes.value_size
    num_channels = 2 * K * dk + sizes.num_value_heads * dv
    file_shape = (num_channels, 1, width)
    if transform == "delta_key_filter":
        boxes = [
            Box((1, dk, width), (number, which * dk, 0), (0, (which * K + place.kv_head) * dk, 0))
            for number, place in places
            for which in range(2)
        ]
        return Part(file_shape, (1, num_channels, width), (0, 1, 2), tuple(boxes))
    assert transform == "delta_value_filter"
    boxes = [
        Box((1, 1, dv, width), (number, i, 0, 0), (0, 0, 2 * K * dk + head * dv, 0))
        for number, place in places
        for i, head in _value_heads(place)
    ]
    return Part(file_shape, (1, 1, num_channels, width), (0, 1, 2, 3), tuple(boxes))


def _value_heads(place: HeadPlace) -> list[tuple[int, int]]:
    """Return the position of each value head within its place, and its number in the checkpoint."""
    return [(i, place.first_query + i) for i in range(place.num_queries)]
