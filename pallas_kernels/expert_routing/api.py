"""The public interface of expert routing and of the experts' sum, which says where there are kernels."""

import jax
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing import gpu_triton, reference, tpu, tpu_sum
from palladio.pallas_kernels.expert_routing.routing import Routed, Routing
from palladio.pallas_kernels.target import Target

OP, OP_OF_SUMS = "expert_routing", "expert_sum"
BACKENDS = {"tpu": tpu.route, "gpu_triton": gpu_triton.route, "reference": reference.route}
SUMS = {"tpu": tpu_sum.weighted_sum, "reference": reference.weighted_sum}


def can_route_experts(x: jax.Array, num_experts: int, routing: Routing, *, backend: str, target: Target) -> bool:
    """Return whether there is a kernel. Otherwise XLA sorts, or compares rows.

    Args:
        x: [T, D], the rows to route, or their shape.
        num_experts: E.
        backend: backend of attention: the platform's kernels, or another's.
        target: see route_experts.
    """
    if target.skips(OP, backend_of(target)):
        return False
    if target.platform == "gpu":
        return backend != "xla" and gpu_triton.takes(x, num_experts, routing, target)
    is_tpu = backend == "tpu" or (backend == "auto" and target.platform == "tpu")
    return is_tpu and tpu.takes(x, num_experts, routing, target)


def route_experts(
    logits: jax.Array,
    x: jax.Array,
    num_tokens: jax.Array | int,
    first: jax.Array | int,
    routing: Routing,
    *,
    bias: jax.Array | None = None,
    backend: str = "auto",
    target: Target = Target(),
) -> Routed:
    """Send each token to those of its experts that are on this device.

    Args:
        logits: f32[T, E], the router's, with the bias if it is one of logits.
        x: [T, D]. The TPU's kernel turns numbers that are not finite into infinity, in their own row only.
        num_tokens: tokens from here on are padding.
        first: the first of this device's experts: a multiple of `routing.num_here`.
        bias: f32[E], where `routing` has one.
        backend: the name of one; auto: the target's.
        target: the device that kernels are compiled for.
    """
    if backend == "auto":
        backend = backend_of(target)
    return BACKENDS[backend](logits, x, num_tokens, first, routing, bias, target)


def backend_of(target: Target) -> str:
    """Return the backend of a target that has a kernel."""
    return "gpu_triton" if target.platform == "gpu" else "tpu"


def can_sum_experts(products: jax.Array, places: jax.Array, rows_here: int, *, target: Target) -> bool:
    """Return whether a kernel is worth its start for the rows that `route_experts` has made with one. On a GPU, the
    kernel that adds rows up takes them by their numbers.

    Args:
        products: [T·C, D], or its shape.
        places: see Routed.
        rows_here: number of rows with an expert of this device, if all experts are used alike.
        target: see route_experts.
    """
    return (
        target.platform != "gpu"
        and not target.skips(OP_OF_SUMS, "tpu")
        and tpu_sum.takes(products, places, rows_here, target)
    )


def sum_experts(
    products: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    *,
    dtype: DTypeLike,
    backend: str = "tpu",
    target: Target = Target(),
) -> jax.Array:
    """Compute the weighted sum of those of each token's experts that are on this device.

    Args:
        products: [T·C, D], the experts' results for their rows; other rows may hold anything.
        weights, places: see Routed.
        dtype: dtype of the result; sums are in float32.
        backend, target: see route_experts.

    Returns:
        [T, D]. The kernel turns numbers that are not finite into infinity or NaN, in their own token only.
    """
    return SUMS[backend](products, weights, places, dtype, target)
