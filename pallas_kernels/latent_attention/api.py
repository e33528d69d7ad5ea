"""The public interface of latent attention; picks a backend."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.kv_cache_update import CacheWrites, write_rows
from palladio.pallas_kernels.latent_attention import gpu_triton, reference, tpu, xla
from palladio.pallas_kernels.latent_attention.layout import DTYPES, LatentOptions, pack_rows
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.target import Target

OP = "latent_attention"
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
# Of backends that want the tokens of chunks in blocks: how many tokens a block.
CHUNK_BLOCKS: dict[str, Callable[[AttentionShape, Target], int]] = {
    "tpu": tpu.chunk_tokens,
    "gpu_triton": gpu_triton.chunk_tokens,
}


def latent_attention(
    q_latent: jax.Array,
    q_rotated: jax.Array,
    pages: jax.Array,
    metadata: AttentionMetadata,
    *,
    scale: float,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Compute causal attention of N heads over rows that are the key of all heads, and, up to lane L, the value.

    Args:
        q_latent: [T, N, L], the part of queries that multiplies the latent.
        q_rotated: [T, N, R], the rotated part of queries.
        pages: [P, S, W] one layer's cache, which already holds the rows of these T tokens.
        metadata: the tokens and pages of each request.
        scale: factor on q·row.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for.

    Returns:
        [T, N, L] in q_latent's dtype: each head's weighted sum of latents. Rows of padding are finite and meaningless.

    Raises:
        ValueError: unknown backend, or shapes that do not fit together.
        NotImplementedError: no backend accepts the call.
    """
    T, N, L = q_latent.shape
    if q_rotated.shape[:2] != (T, N) or L + q_rotated.shape[2] > pages.shape[2]:
        raise ValueError(f"q {q_latent.shape} and {q_rotated.shape} do not fit pages {pages.shape}: [P, S, W]")
    if metadata.kind == "decode" and metadata.kv_len.shape[0] != T:
        raise ValueError(f"a decode batch has one token a request, got {T} tokens for {metadata.kv_len.shape[0]}")
    if jnp.dtype(pages.dtype).name not in DTYPES:
        raise NotImplementedError(
            f"latents are kept as {', '.join(DTYPES)}, not as {jnp.dtype(pages.dtype).name}: use --kv-cache-dtype auto"
        )
    q = pack_rows(q_latent, q_rotated, pages.shape[2], q_latent.dtype)
    options = LatentOptions(L, q_rotated.shape[2], scale, target)
    calls = {name: functools.partial(call, q, pages, metadata, options) for name, call in BACKENDS.items()}
    return dispatch(OP, calls, target.kept(OP, AUTO_ORDER[target.platform]), backend)


def plan_latent_attention(
    metadata: AttentionMetadata, num_tokens: int, shape: AttentionShape, *, backend: str, target: Target
) -> AttentionMetadata:
    """Add the backend's plan of a step, which each layer would otherwise compute.

    Args:
        num_tokens: T.
        shape: shape of the layers, see `latent_shape`.
        backend, target: those of the latent_attention calls.
    """
    chosen = target.kept(OP, AUTO_ORDER[target.platform])[0] if backend == "auto" else backend
    try:
        block = CHUNK_BLOCKS[chosen](shape, target) if chosen in CHUNK_BLOCKS else None
    except NotImplementedError:  # the backend will say so itself, and another may be tried
        return metadata
    return metadata.planned(num_tokens, block)


def latent_cache_update(
    pages: jax.Array,
    latent: jax.Array,
    rotated: jax.Array,
    writes: CacheWrites,
    *,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Write one row a token, as kv_cache_update writes those of one kv head.

    Args:
        pages: [P, S, W] one layer's cache; donate it, and the write is in place.
        latent: [T, L].
        rotated: [T, R], the rotated part of the key.
        writes: target cells. No cell twice, except on page 0; tokens of one page follow each other along T and in it.
        backend, target: see kv_cache_update.

    Returns:
        [P, S, W] the cache with those rows replaced. The content of page 0 is not defined.
    """
    rows = pack_rows(latent, rotated, pages.shape[2], pages.dtype)
    return write_rows(pages[:, None], rows[:, None], writes, backend=backend, target=target)[:, 0]
