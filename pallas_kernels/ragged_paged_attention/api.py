"""The public face of ragged paged attention; picks a backend."""

import functools

import jax

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.ragged_paged_attention import reference, xla
from palladio.pallas_kernels.ragged_paged_attention.layout import padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.metadata import AttentionMetadata, AttentionOptions

BACKENDS = {"xla": xla.attention, "reference": reference.attention}
AUTO_ORDER = ("xla", "reference")


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    backend: str = "auto",
) -> jax.Array:
    """Causal attention with grouped queries (N = K·G; query head n reads kv head n // G).

    Args:
        q: [T, N, H] queries.
        kv_pages: [P, K, S, 2·Hp] one layer's cache, which already holds the keys and values of these T tokens.
        metadata: which tokens and pages belong to which request.
        scale: factor on q·k.
        sliding_window: a query at position p sees keys at positions p - sliding_window + 1 … p.
        soft_cap: cap of the scores by tanh.
        backend: "auto", or the name of one.

    Returns:
        [T, N, H] in q's dtype. Rows of padding are finite and meaningless.

    Raises:
        ValueError: unknown backend, or shapes that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    T, N, H = q.shape
    _, K, _, W = kv_pages.shape
    B = metadata.kv_len.shape[0]
    if N % K or 2 * padded_head_size(H) != W:
        raise ValueError(f"q {q.shape} does not fit kv_pages {kv_pages.shape}: N must be a multiple of K, and W 2·Hp")
    if metadata.kind == "decode" and T != B:
        raise ValueError(f"a decode batch has one token a request, got {T} tokens for {B} requests")
    options = AttentionOptions(scale, sliding_window, soft_cap)
    bound = {name: functools.partial(call, q, kv_pages, metadata, options) for name, call in BACKENDS.items()}
    return dispatch("ragged_paged_attention", bound, AUTO_ORDER, backend)
