"""Weight rules: the parameter of each tensor of a checkpoint, and the transform between them."""

import dataclasses
from typing import Literal

Transform = Literal[
    "vector",
    "label_rows",
    "output",
    "down",
    "rows",
    "rows_bias",
    "scalar",
    "row",
    "query",
    "key",
    "value",
    "query_bias",
    "key_bias",
    "value_bias",
    "fused_query",
    "fused_key",
    "fused_value",
    "fused_query_bias",
    "fused_key_bias",
    "fused_value_bias",
    "grouped_query",
    "grouped_key",
    "grouped_value",
    "grouped_query_bias",
    "grouped_key_bias",
    "grouped_value_bias",
    "query_scale",
    "key_scale",
    "query_scales",
    "key_scales",
    "sinks",
    "head_columns",
    "gate",
    "up",
    "gate_bias",
    "up_bias",
    "fused_gate",
    "fused_up",
    "fused_gate_bias",
    "fused_up_bias",
    "later_gate",
    "earlier_up",
    "inner",
    "inner_bias",
    "transposed",
    "matrix",
    "expert_in",
    "expert_down",
    "experts_gate",
    "experts_up",
    "experts_down",
    "paired_gate",
    "paired_up",
    "paired_gate_bias",
    "paired_up_bias",
    "experts_down_bias",
    "shared_gate",
    "shared_up",
    "shared_down",
    "latent_query",
    "latent_row",
    "latent_row_bias",
    "latent_keys",
    "latent_values",
    "latent_output",
    "gated_query",
    "query_gate",
    "delta_fused_keys",
    "delta_fused_values",
    "delta_fused_rates",
    "delta_keys",
    "delta_values",
    "delta_gates",
    "delta_shares",
    "delta_decays",
    "delta_key_filter",
    "delta_value_filter",
    "delta_heads",
    "delta_output",
]
"""Ways to turn a file's tensor into (a part of) a parameter; model/loading/layout/weight_transforms.py has them."""

ExpertStorage = Literal["split", "stacked"]
"""Storage of experts: each by itself (split), or all of a layer as one tensor (stacked)."""


@dataclasses.dataclass(frozen=True)
class WeightRule:
    """One line of a weight table. It holds in every layer whose spec makes its parameter (a bias, say, or the router of
    a mixture); where there is no such parameter, there must be no such tensor either.

    Attributes:
        name: the tensor's name in the checkpoint; `{layer}` stands for each layer's number, `{expert}` for each
            expert's.
        param: path of our parameter, with the same `{layer}`.
        transform: turns the tensor into the parameter, or into its part of a fused one.
        storage: the rule holds only where experts are stored this way; None: always.
        inputs_first: the matrix has its inputs before its outputs where it is stored plainly.
        either_way: or after them, where its shape says so.
    """

    name: str
    param: str
    transform: Transform
    storage: ExpertStorage | None = None
    inputs_first: bool = False
    either_way: bool = False


def layer_rules(
    part: str,
    module: str,
    *rules: tuple[str, str, Transform] | tuple[str, str, Transform, ExpertStorage],
    layers: str = "layers",
) -> tuple[WeightRule, ...]:
    """Make rules that hold in each layer.

    Args:
        part: prefix of the tensors' names, after the layer's number.
        module: prefix of the parameters' paths, after the layer's number.
        rules: the rest of the name, the rest of the path, the transform, and perhaps the storage.
        layers: the tensors' name of the list of layers.
    """
    return tuple(
        WeightRule(f"model.{layers}.{{layer}}.{part}{name}", f"layers.{{layer}}.{module}{param}", *rest)
        for name, param, *rest in rules
    )
