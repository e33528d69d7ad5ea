"""From a router's logits to the rows of each expert, and back to their sum: of steps of few tokens on a TPU."""

from palladio.pallas_kernels.expert_routing.api import (
    Groups,
    Routed,
    Routing,
    can_route_experts,
    can_sum_experts,
    choose,
    route_experts,
    sum_experts,
)

__all__ = [
    "Groups",
    "Routed",
    "Routing",
    "can_route_experts",
    "can_sum_experts",
    "choose",
    "route_experts",
    "sum_experts",
]
