"""From a router's logits to the rows of each expert, in one kernel: of steps of few tokens on a TPU."""

from palladio.pallas_kernels.expert_routing.api import Routed, Routing, can_route_experts, route_experts

__all__ = ["Routed", "Routing", "can_route_experts", "route_experts"]
