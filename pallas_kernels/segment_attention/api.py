"""The public interface of segment attention; picks a backend."""

import functools

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.segment_attention import gpu_triton, reference, tpu, xla
from palladio.pallas_kernels.segment_attention.segments import SegmentOptions, Segments
from palladio.pallas_kernels.target import Target

OP = "segment_attention"
BACKENDS = {
    "tpu": tpu.attention,
    "gpu_triton": gpu_triton.attention,
    "xla": xla.attention,
    "reference": reference.attention,
}
AUTO_ORDER = {
    "cpu": ("xla", "reference"),
    "tpu": ("tpu", "xla", "reference"),
    "gpu": ("gpu_triton", "xla", "reference"),
}


def segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    bias: jax.Array | None = None,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Compute attention within packed segments, in both directions, with grouped queries (N = K·G; query head n reads
    kv head n // G).

    Args:
        q: [T, N, H] queries, rotated if the model rotates them.
        k, v: [T, K, H] keys and values.
        segments: the segment of each token.
        scale: factor on q·k.
        window: a token sees this many tokens on each side, and itself; None: its whole segment.
        bias: f32[N, 2·M+1], added to scores by distance, see SegmentOptions; None: there is none.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        [T, N, H] in q's dtype; 0 for padding, and NaN in segments with values that are not finite: no other segment's
        are changed by them.

    Raises:
        ValueError: unknown backend, or shapes that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    T, N, H = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[2]) != (T, H) or N % k.shape[1]:
        raise ValueError(f"q {q.shape} does not fit k {k.shape} and v {v.shape}: [T, N, H] and twice [T, K, H]")
    if segments.starts.shape != (T,):
        raise ValueError(f"segments are of {segments.starts.shape[0]} tokens, q of {T}")
    if bias is not None and (bias.ndim != 2 or bias.shape[0] != N or bias.shape[1] % 2 != 1):
        raise ValueError(f"bias is f32[{N}, 2·M+1], got shape {bias.shape}")
    if window is not None and window < 0:
        raise ValueError(f"window is a number of tokens on each side, got {window}")
    options = SegmentOptions(scale, window, bias, target)
    # 0 · NaN is NaN: else what is not finite would reach all segments of its block.
    spoilt = ~jnp.isfinite(v).all(axis=(1, 2))
    values = jnp.where(spoilt[:, None, None], 0, v)
    bound = {name: functools.partial(call, q, k, values, segments, options) for name, call in BACKENDS.items()}
    out = dispatch(OP, bound, target.kept(OP, AUTO_ORDER[target.platform]), backend)
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(spoilt, dtype=jnp.int32)])
    is_spoilt = before[segments.stops] > before[segments.starts]
    return jnp.where(is_spoilt[:, None, None], jnp.nan, out)
