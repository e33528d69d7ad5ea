"""The public face of the routing of experts and of their sum; says where there are kernels for them."""

import jax
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing import gpu_triton, reference, tpu, tpu_sum
from palladio.pallas_kernels.expert_routing.routing import Routed, Routing
from palladio.pallas_kernels.target import Target

BACKENDS = {"tpu": tpu.route, "gpu_triton": gpu_triton.route, "reference": reference.route}
SUMS = {"tpu": tpu_sum.weighted_sum, "reference": reference.weighted_sum}


def can_route_experts(x: jax.Array, num_experts: int, routing: Routing, *, backend: str, target: Target) -> bool:
    """Whether there is a kernel. Elsewhere sorting, or comparing rows, is left to XLA.

    Args:
        x: [T, D], what is routed, or its shape.
        num_experts: E.
        backend: of attention: the platform's kernels, or another's.
        target: see route_experts.
    """
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
    """Sends each token to its experts, as far as these are on this device.

    Args:
        logits: f32[T, E], the router's, with a bias that is theirs.
        x: [T, D]. From a TPU's kernel, what is not finite comes out as infinity, and stays in its row.
        num_tokens: those from here on are padding.
        first: the first of this device's experts: a multiple of `routing.num_here`.
        bias: f32[E], where `routing` has one.
        backend: the name of one; auto: the target's.
        target: what kernels are compiled for.
    """
    if backend == "auto":
        backend = "gpu_triton" if target.platform == "gpu" else "tpu"
    return BACKENDS[backend](logits, x, num_tokens, first, routing, bias, target)


def can_sum_experts(products: jax.Array, places: jax.Array, rows_here: int, *, target: Target) -> bool:
    """Whether there is a kernel that is worth it, for what `route_experts` has made with one. A GPU takes rows by their
    numbers in the kernel that adds them up.

    Args:
        products: [T·C, D], or its shape. places: see Routed. target: see route_experts.
        rows_here: how many have an expert of this device, if all experts are used alike.
    """
    return target.platform != "gpu" and tpu_sum.takes(products, places, rows_here, target)


def sum_experts(
    products: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    *,
    dtype: DTypeLike,
    backend: str = "tpu",
    target: Target = Target(),
) -> jax.Array:
    """The weighted sum of each token's experts, as far as these are on this device.

    Args:
        products: [T·C, D], what the experts have made of their rows; others may be anything.
        weights, places: see Routed.
        dtype: of the result; sums are in float32.
        backend, target: see route_experts.

    Returns:
        [T, D]. From the kernel, what is not finite makes its token infinite or NaN, and no other.
    """
    return SUMS[backend](products, weights, places, dtype, target)
