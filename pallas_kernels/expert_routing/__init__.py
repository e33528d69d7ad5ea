"""From a router's logits to the rows of each expert, and back to their sum, for steps of few tokens on TPUs and
GPUs."""

from palladio.pallas_kernels.expert_routing.api import (
    can_route_experts,
    can_sum_experts,
    route_experts,
    sum_experts,
)
from palladio.pallas_kernels.expert_routing.routing import Groups, Routed, Routing, choose

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
