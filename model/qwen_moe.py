"""Qwen2-MoE and Qwen3-MoE: Qwen's attention, and a mixture of experts."""

import dataclasses

from palladio.model.family import EXPERTS, ExpertKeys, Family
from palladio.model.qwen import QWEN2, QWEN3

_NO_WINDOW = ("use_sliding_window", False)  # no published model has one; transformers' releases differ in its layers
_EXPERTS = ExpertKeys(
    num_experts="num_experts",
    other_name_wins=True,
    intermediate_size="moe_intermediate_size",
    shared_intermediate_size=None,
    always_renormalized=False,
    dense_layers=True,
)

QWEN2_MOE = dataclasses.replace(
    QWEN2,
    num_kv_heads=16,
    sliding_window="none",
    weights=(*QWEN2.weights, *EXPERTS),
    experts=dataclasses.replace(
        _EXPERTS, other_name_wins=False, shared_intermediate_size="shared_expert_intermediate_size"
    ),
    required=(_NO_WINDOW, ("qkv_bias", True)),
)

QWEN3_MOE = dataclasses.replace(
    QWEN3,
    head_size=None,
    num_kv_heads=4,
    sliding_window="none",
    weights=(*QWEN3.weights, *EXPERTS),
    experts=_EXPERTS,
    required=(_NO_WINDOW,),
)

FAMILIES: dict[str, Family] = {"Qwen2MoeForCausalLM": QWEN2_MOE, "Qwen3MoeForCausalLM": QWEN3_MOE}
