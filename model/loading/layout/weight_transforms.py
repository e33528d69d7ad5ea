"""Transforms of the weight tables: the position and the order of a file's tensor in a parameter."""

from palladio.model.config.config import ModelConfig
from palladio.model.config.weight_rules import Transform
from palladio.model.loading.layout.delta_transforms import delta_part
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.layout.tensor_part import Box, Part
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.latent_config import LatentConfig


def part_of(transform: Transform, shape: tuple[int, ...], layout: TensorLayout, expert: int = 0) -> Part:
    """Return the part that a transform makes of a parameter of this shape.

    Args:
        expert: number of the tensor's expert, where each expert has a tensor.
    """
    stored = layout.stored
    match transform:
        case "vector":
            return _whole(shape, tuple(range(len(shape))))
        case "label_rows":  # of a table of tokens, those of some
            assert stored.classifier is not None
            D, labels = shape[1], enumerate(stored.classifier.token_ids)
            rows = tuple(Box((1, D), (label, 0), (token_id, 0)) for label, token_id in labels)
            return Part((stored.vocab_size, D), (stored.vocab_size, D), (0, 1), rows)
        case "rows":
            return _whole((stored.vocab_size, shape[1]), (0, 1))
        case "row" | "scalar":  # a vector with one more dimension; a number alone
            return Part((1, *shape) if transform == "row" else (), shape, (0,), (Box(shape, (0,), (0,)),))
        case "transposed" | "matrix":
            return _whole(shape[::-1], (1, 0))
        case "output":  # files hold [out, in], as in all that follow
            return _output(shape, layout)
        case "down":
            return _whole((shape[1], stored.intermediate_size), (1, 0))
        case "inner":
            return _whole((stored.intermediate_size, shape[0]), (1, 0))
        case "inner_bias" | "rows_bias":
            return _whole((stored.intermediate_size if transform == "inner_bias" else stored.vocab_size,), (0,))
        case "fused_gate" | "fused_up" | "later_gate" | "earlier_up" | "fused_gate_bias" | "fused_up_bias":
            return _of_fused_mlp(transform, shape, stored.intermediate_size)
        case "gate" | "up":
            return _gate_or_up(shape[0], stored.intermediate_size, ("gate", "up").index(transform))
        case "gate_bias" | "up_bias":
            F = stored.intermediate_size
            slot = ("gate_bias", "up_bias").index(transform)
            return Part((F,), (1, F), (0, 1), (Box((1, F), (slot, 0), (0, 0)),))
        case "query" | "key" | "value":
            D, H, boxes = shape[0], shape[-1], _head_boxes(transform, layout)
            heads = _num_stored_heads(transform, layout)
            whole = tuple(Box((D, *box.shape, H), (0, *box.target, 0), (0, *box.source, 0)) for box in boxes)
            return Part((heads * H, D), (1, heads, H, D), (3, 0, 1, 2), whole)
        case "fused_query" | "fused_key" | "fused_value":
            return _of_fused_heads(transform.removeprefix("fused_"), shape, layout)
        case "fused_query_bias" | "fused_key_bias" | "fused_value_bias":
            kind = transform.removeprefix("fused_").removesuffix("_bias")
            return _without_inputs(_of_fused_heads(kind, (1, *shape), layout))
        case "grouped_query" | "grouped_key" | "grouped_value":
            return _of_grouped_heads(transform.removeprefix("grouped_"), shape, layout)
        case "grouped_query_bias" | "grouped_key_bias" | "grouped_value_bias":
            kind = transform.removeprefix("grouped_").removesuffix("_bias")
            return _without_inputs(_of_grouped_heads(kind, (1, *shape), layout))
        case "query_scale" | "key_scale" | "query_scales" | "key_scales":
            kind, _, number = transform.partition("_")
            return _head_scales(kind, layout, are_apart=number == "scales")
        case "sinks":
            boxes = [
                Box((place.num_queries,), (number * layout.group,), (place.first_query,))
                for number, place in enumerate(layout.places)
                if place is not None
            ]
            return Part((stored.num_heads,), (stored.num_heads,), (0,), tuple(boxes))
        case "head_columns":
            return _of_head_columns(shape[0], layout)
        case "query_bias" | "key_bias" | "value_bias":
            kind = transform.removesuffix("_bias")
            H, heads = shape[-1], _num_stored_heads(kind, layout)
            whole = tuple(Box((*box.shape, H), (*box.target, 0), (*box.source, 0)) for box in _head_boxes(kind, layout))
            return Part((heads * H,), (1, heads, H), (0, 1, 2), whole)
        case "gated_query" | "query_gate":
            return _of_gated_queries(shape, layout, is_gate=transform == "query_gate")
        case _:
            if transform.startswith("delta_"):
                return delta_part(transform, shape, layout)
            if transform.startswith("latent_"):
                assert stored.latent is not None
                return _of_latents(transform, shape, stored.num_heads, stored.latent)
            assert stored.experts is not None
            return _of_experts(transform, shape, stored.experts, expert)


def _of_fused_mlp(kind: str, shape: tuple[int, ...], F: int) -> Part:
    """Return a part of [2·F, D]: the gate's rows come first, or, of a later gate, last; in the parameter [D, 2, F] the
    gate is first. That of a bias has no D."""
    if kind.endswith("_bias"):
        return _without_inputs(_of_fused_mlp(kind.removesuffix("_bias"), (1, *shape), F))
    D, slot = shape[0], int(kind.endswith("up"))
    source = 1 - slot if kind in ("later_gate", "earlier_up") else slot
    return Part((2 * F, D), (2, F, D), (2, 0, 1), (Box((D, 1, F), (0, slot, 0), (0, source, 0)),))


def _of_head_columns(rows: int, layout: TensorLayout) -> Part:
    """Return the part of a table [rows, N], of which each query head has a column."""
    columns = tuple(
        Box((rows, place.num_queries), (0, number * layout.group), (0, place.first_query))
        for number, place in enumerate(layout.places)
        if place is not None
    )
    file_shape = (rows, layout.stored.num_heads)
    return Part(file_shape, file_shape, (0, 1), columns)


def _of_gated_queries(shape: tuple[int, ...], layout: TensorLayout, *, is_gate: bool) -> Part:
    """Return the part of [2·N·H, D] with each head's query and then its gate; in the parameter all gates follow the kv
    head's value."""
    D, H, N = shape[0], shape[-1], layout.stored.num_heads
    first = layout.group + 2 if is_gate else 0
    boxes = tuple(
        Box((D, 1, 1, H), (0, number, first + query, 0), (0, 0, 2 * (place.first_query + query) + is_gate, 0))
        for number, place in enumerate(layout.places)
        if place is not None
        for query in range(place.num_queries)
    )
    return Part((2 * N * H, D), (1, 2 * N, H, D), (3, 0, 1, 2), boxes)


def _of_latents(transform: Transform, shape: tuple[int, ...], N: int, sizes: LatentConfig) -> Part:
    """Return a part of latent attention: queries [in, N, plain + R], rows [D, L + R], the projections that expand them
    [N, plain or value, L], or the projection back [N·value, D]. Heads that the layout adds follow the checkpoint's."""
    L, plain, value, order = sizes.latent_size, sizes.plain_size, sizes.value_size, sizes.rotated_order
    match transform:
        case "latent_query":
            size, split = shape[0], (N, sizes.query_size, shape[0])
            rotated = (Box((size, N, 1), (0, 0, plain + i), (0, 0, plain + place)) for i, place in enumerate(order))
            boxes = (Box((size, N, plain), (0, 0, 0), (0, 0, 0)), *rotated)
            return Part((N * sizes.query_size, size), split, (2, 0, 1), boxes)
        case "latent_row":
            D, file_shape = shape[0], (sizes.row_size, shape[0])
            columns = (Box((D, 1), (0, L + i), (0, L + place)) for i, place in enumerate(order))
            return Part(file_shape, file_shape, (1, 0), (Box((D, L), (0, 0), (0, 0)), *columns))
        case "latent_row_bias":
            single = (Box((1,), (L + i,), (L + place,)) for i, place in enumerate(order))
            return Part(shape, shape, (0,), (Box((L,), (0,), (0,)), *single))
        case "latent_keys" | "latent_values":  # of each head, the rows of keys come first
            first, size = (0, plain) if transform == "latent_keys" else (plain, value)
            box = Box((N, size, L), (0, 0, 0), (0, first, 0))
            return Part((N * (plain + value), L), (N, plain + value, L), (0, 1, 2), (box,))
        case _:
            assert transform == "latent_output"
            return _whole((shape[1], N * value), (1, 0))


def _of_experts(transform: Transform, shape: tuple[int, ...], experts: ExpertsConfig, expert: int) -> Part:
    """Return a part of parameters [E, D, F] and [E, F, D], or of the expert that every token goes to, [D, 2, F] and [F,
    D]."""
    E, F, shared = experts.num_experts, experts.intermediate_size, experts.shared_intermediate_size or 0
    match transform:
        case "expert_in":
            D = shape[1]
            return Part((F, D), (1, F, D), (0, 2, 1), (Box((1, D, F), (expert, 0, 0), (0, 0, 0)),))
        case "expert_down":
            D = shape[2]
            return Part((D, F), (1, D, F), (0, 2, 1), (Box((1, F, D), (expert, 0, 0), (0, 0, 0)),))
        case "experts_gate" | "experts_up":  # the former's rows come first, of each expert
            D, first = shape[1], ("experts_gate", "experts_up").index(transform) * F
            file_shape = (E, 2 * F, D)
            return Part(file_shape, file_shape, (0, 2, 1), (Box((E, D, F), (0, 0, 0), (0, 0, first)),))
        case "experts_down":
            return _whole((E, shape[2], F), (0, 2, 1))
        case "paired_gate" | "paired_up":  # alternating rows, of each expert
            D, which = shape[1], ("paired_gate", "paired_up").index(transform)
            boxes = (Box((E, D, F), (0, 0, 0), (0, 0, 0)),)
            return Part((E, 2 * F, D), (E, F, 2, D), (0, 2, 1), boxes, (slice(None), slice(None), which))
        case "paired_gate_bias" | "paired_up_bias":
            which = ("paired_gate_bias", "paired_up_bias").index(transform)
            boxes = (Box((E, F), (0, 0), (0, 0)),)
            return Part((E, 2 * F), (E, F, 2), (0, 1), boxes, (slice(None), slice(None), which))
        case "experts_down_bias":
            return _whole((E, shape[1]), (0, 1))
        case "shared_gate" | "shared_up":
            return _gate_or_up(shape[0], shared, ("shared_gate", "shared_up").index(transform))
        case _:
            assert transform == "shared_down"
            return _whole((shape[1], shared), (1, 0))


def _gate_or_up(D: int, F: int, slot: int) -> Part:
    """Return a part of [D, 2, F]: the gate is in slot 0, the other in slot 1."""
    return Part((F, D), (1, F, D), (2, 0, 1), (Box((D, 1, F), (0, slot, 0), (0, 0, 0)),))


def _whole(size: tuple[int, ...], order: tuple[int, ...]) -> Part:
    """Return all of a tensor, its dimensions in this order, from the parameter's beginning on.

    Args:
        size: shape of the tensor in the parameter.
    """
    start = (0,) * len(size)
    return Part(size, size, order, (Box(tuple(size[i] for i in order), start, start),))


def _output(shape: tuple[int, ...], layout: TensorLayout) -> Part:
    """Return the part of the projection back, [N·H, D]: the rows of each head."""
    (rows, D), stored = shape, layout.stored
    H, group = stored.head_size, layout.group
    assert rows == layout.config.num_heads * H
    file_shape = (D, stored.num_heads * H)
    boxes = tuple(
        Box((place.num_queries * H, D), (number * group * H, 0), (place.first_query * H, 0))
        for number, place in enumerate(layout.places)
        if place is not None
    )
    return Part(file_shape, file_shape, (1, 0), boxes)


def rows_of_parts(transform: Transform, stored: ModelConfig) -> tuple[int, ...]:
    """Return the rows of each matrix where a file's tensor has several one after another; none where it has one matrix,
    or where their rows alternate.

    Args:
        stored: the model as the checkpoint has it.
    """
    if transform in ("fused_gate", "fused_up", "later_gate", "earlier_up"):
        return (stored.intermediate_size,) * 2
    if transform in ("fused_query", "fused_key", "fused_value"):
        queries, keys = (heads * stored.head_size for heads in (stored.num_heads, stored.num_kv_heads))
        return queries, keys, keys
    return ()


def _of_fused_heads(kind: str, shape: tuple[int, ...], layout: TensorLayout) -> Part:
    """Return a part of [(N + 2·K)·H, D]: the rows of all query heads, then those of all key heads, then those of all
    value heads."""
    N, K, D, H = layout.stored.num_heads, layout.stored.num_kv_heads, shape[0], shape[-1]
    first = {"query": 0, "key": N, "value": N + K}[kind]
    boxes = tuple(
        Box((D, *box.shape, H), (0, *box.target, 0), (0, box.source[0], first + box.source[1], 0))
        for box in _head_boxes(kind, layout)
    )
    return Part(((N + 2 * K) * H, D), (1, N + 2 * K, H, D), (3, 0, 1, 2), boxes)


def _of_grouped_heads(kind: str, shape: tuple[int, ...], layout: TensorLayout) -> Part:
    """Return a part of [K·(G + 2)·H, D]: for each key head the rows of its G query heads, then its own, then its
    value's."""
    K, D, H = layout.stored.num_kv_heads, shape[0], shape[-1]
    group = layout.stored.num_heads // K
    slot = {"query": 0, "key": group, "value": group + 1}[kind]
    boxes = []
    for number, place in enumerate(layout.places):
        if place is None:
            continue
        if kind == "query":  # of one key head all
            first = place.first_query % group
            boxes.append(Box((D, 1, place.num_queries, H), (0, number, 0, 0), (0, place.kv_head, first, 0)))
        else:
            target = layout.group + (kind == "value")
            boxes.append(Box((D, 1, 1, H), (0, number, target, 0), (0, place.kv_head, slot, 0)))
    return Part((K * (group + 2) * H, D), (K, group + 2, H, D), (3, 0, 1, 2), tuple(boxes))


def _without_inputs(part: Part) -> Part:
    """Return the part of a bias, where `part` is that of its matrix, whose inputs come first in the parameter and last
    in the file."""
    order = tuple(number for number in part.order if number != len(part.order) - 1)
    boxes = tuple(box.without(0) for box in part.boxes)
    return Part(part.file_shape[:-1], part.split[:-1], order, boxes)


def _head_scales(kind: str, layout: TensorLayout, *, are_apart: bool) -> Part:
    """Return the part of the scales of all query heads [N·H], or of all key heads [K·H].

    Args:
        are_apart: the file's tensor has a row for each head.
    """
    H, heads = layout.stored.head_size, _num_stored_heads(kind, layout)
    boxes = []
    for number, place in enumerate(layout.places):
        if place is not None and kind == "query":
            first = number * layout.group * H
            boxes.append(Box((place.num_queries * H,), (first,), (place.first_query * H,)))
        elif place is not None:
            boxes.append(Box((H,), (number * H,), (place.kv_head * H,)))
    return Part((heads, H) if are_apart else (heads * H,), (heads * H,), (0,), tuple(boxes))


def _num_stored_heads(kind: str, layout: TensorLayout) -> int:
    return layout.stored.num_heads if kind == "query" else layout.stored.num_kv_heads


def _head_boxes(kind: str, layout: TensorLayout) -> list[Box]:
    """Return blocks of (kv head, slot). A kv head's query heads come first, then its key, then its value; the view of
    the stored tensor has all heads in its second dimension."""
    places = [(number, place) for number, place in enumerate(layout.places) if place is not None]
    if kind == "query":
        return [Box((1, place.num_queries), (number, 0), (0, place.first_query)) for number, place in places]
    slot = layout.group if kind == "key" else layout.group + 1
    return [Box((1, 1), (number, slot), (0, place.kv_head)) for number, place in places]
