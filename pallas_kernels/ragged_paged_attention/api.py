"""The public interface of ragged paged attention; picks a backend."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.ragged_paged_attention import cpu_native, reference, xla
from palladio.pallas_kernels.ragged_paged_attention.gpu import gpu_mosaic, gpu_triton
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import KVPages, ScaledPages, padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.ragged_paged_attention.tpu import tpu
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import chunk_block
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_rows import ALIGNMENT
from palladio.pallas_kernels.target import Target

OP = "ragged_paged_attention"
BACKENDS = {
    "tpu": tpu.attention,
    "gpu_mosaic": gpu_mosaic.attention,
    "gpu_triton": gpu_triton.attention,
    "cpu_native": cpu_native.attention,
    "xla": xla.attention,
    "reference": reference.attention,
}
AUTO_ORDER = {
    "cpu": ("cpu_native", "xla", "reference"),
    "tpu": ("tpu", "xla", "reference"),
    "gpu": ("gpu_mosaic", "gpu_triton", "xla", "reference"),
}
PALLAS = {"tpu": "tpu", "gpu_mosaic": "gpu", "gpu_triton": "gpu"}  # platforms of the backends that are made for one
# Of backends that want the tokens of chunks in blocks: how many tokens a block.
CHUNK_BLOCKS: dict[str, Callable[[AttentionShape, Target], int]] = {
    "tpu": chunk_block,
    "gpu_mosaic": gpu_mosaic.chunk_tokens,
    "gpu_triton": gpu_triton.chunk_tokens,
}
CHUNK_ALIGNMENT = {"tpu": ALIGNMENT}  # and at which tokens they begin, if not at any


def auto_order(target: Target) -> tuple[str, ...]:
    """Return the backends that `auto` tries for a target, best first."""
    order = target.kept(OP, AUTO_ORDER[target.platform])
    loaded = (backend for backend in order if backend != "cpu_native" or target.is_native)
    return mosaic.auto_order(target, tuple(loaded))


def plan_attention(
    metadata: AttentionMetadata,
    num_tokens: int,
    shape: AttentionShape,
    *,
    backend: str = "auto",
    target: Target = Target(),
) -> AttentionMetadata:
    """Add the backend's plan of a step, which each layer would otherwise compute.

    Args:
        num_tokens: T.
        shape: shape of the layers that share the plan.
        backend, target: those of the ragged_paged_attention calls.
    """
    chosen = auto_order(target)[0] if backend == "auto" else backend
    try:
        block = CHUNK_BLOCKS[chosen](shape, target) if chosen in CHUNK_BLOCKS else None
    except NotImplementedError:  # the backend will say so itself, and another may be tried
        return metadata
    return metadata.planned(num_tokens, block, CHUNK_ALIGNMENT.get(chosen, 1))


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: KVPages,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    k_scale: jax.Array | float = 1.0,
    v_scale: jax.Array | float = 1.0,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Compute causal attention with grouped queries (N = K·G; query head n reads kv head n // G).

    Args:
        q: [T, N, H] queries.
        kv_pages: [P, K, S, 2·Hp] one layer's cache, which already holds the keys and values of these T tokens.
        metadata: the tokens and pages of each request.
        scale: factor on q·k.
        sliding_window: a query at position p sees keys at positions p - sliding_window + 1 … p.
        soft_cap: cap of the scores by tanh.
        sinks: f32[N], for each query head the score of one more key, whose value is 0.
        k_scale, v_scale: f32[], factors on stored keys and values, in addition to the scales of int8 rows.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        [T, N, H] in q's dtype. Rows of padding are finite and meaningless.

    Raises:
        ValueError: unknown backend, or shapes that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    T, N, H = q.shape
    _, K, _, W = kv_pages.shape
    B = metadata.kv_len.shape[0]
    rows, scales = kv_pages if isinstance(kv_pages, ScaledPages) else (kv_pages, None)
    if rows.dtype == jnp.int8 and scales is None:
        raise ValueError("a cache of int8 has a scale for each row: ScaledPages")
    if N % K or 2 * padded_head_size(H) != W:
        raise ValueError(f"q {q.shape} does not fit kv_pages {kv_pages.shape}: N must be a multiple of K, and W 2·Hp")
    if metadata.kind == "decode" and T != B:
        raise ValueError(f"a decode batch has one token a request, got {T} tokens for {B} requests")
    if sinks is not None and sinks.shape != (N,):
        raise ValueError(f"sinks are one score a query head, f32[{N}], got shape {sinks.shape}")
    options = AttentionOptions(scale, sliding_window, soft_cap, target, sinks, k_scale, v_scale, scales)
    bound = {name: functools.partial(call, q, rows, metadata, options) for name, call in BACKENDS.items()}
    return dispatch(OP, bound, auto_order(target), backend)
