"""The backend for Hopper GPUs. Prefill uses Mosaic: the copy engine fetches pages ahead, and products are asynchronous.
Decode, which is bound by memory either way, uses the Triton kernel.

XLA keeps these kernels inside a CUDA graph; `auto` uses them from JAX 0.12 on (auto_order in mosaic.py).
"""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.ragged_paged_attention.gpu import gpu_triton, mosaic_prefill
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import MosaicBlocks
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.target import Target

HEAD_SIZES = (64, 128)  # of 256, sums and scores of a tile exceed a thread's registers (116 bytes spilled, ptxas 13.5)
MIN_PAGE_SIZE = 8


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H]; 0 for rows of padding.

    Raises:
        NotImplementedError: the target is no Hopper GPU, or the kernel does not support the head size, page size or
            dtype.
    """
    target = options.target
    reason = mosaic.refusal(target) or _refusal(q.shape[-1], kv_pages.shape[2], q.dtype.name, kv_pages.dtype.name)
    if reason is not None:
        raise NotImplementedError(reason)
    if metadata.kind == "decode":
        return gpu_triton.attention(q, kv_pages, metadata, options)
    out = mosaic_prefill.attend(q, kv_pages, metadata, options, MosaicBlocks.of(q.shape[-1]))
    return gpu_triton.attend_decodes(q, kv_pages, metadata, options, onto=out)


def chunk_tokens(shape: AttentionShape, target: Target) -> int:
    """Return the tokens of a prefill block, for plan_attention.

    Raises:
        NotImplementedError: the kernel does not support this shape.
    """
    reason = mosaic.refusal(target) or _refusal(
        shape.head_size, shape.page_size, jnp.dtype(shape.dtype).name, jnp.dtype(shape.kv_dtype).name
    )
    if reason is not None:
        raise NotImplementedError(reason)
    return MosaicBlocks.of(shape.head_size).queries


def _refusal(head_size: int, page_size: int, dtype: str, kv_dtype: str) -> str | None:
    """Return why the kernel cannot do this call; None: it can."""
    if head_size not in HEAD_SIZES:
        return f"it takes heads of {', '.join(map(str, HEAD_SIZES))}, not of {head_size}"
    if dtype != "bfloat16" or kv_dtype != "bfloat16":
        return f"it computes in bfloat16 with a cache of bfloat16, not {dtype} with {kv_dtype}"
    keys = MosaicBlocks.of(head_size).keys
    if page_size < MIN_PAGE_SIZE or (page_size % keys and keys % page_size):
        return (
            f"pages of {page_size} tokens are not a divisor or a multiple of the {keys} keys of a block, of at least "
            f"{MIN_PAGE_SIZE}: set --page-size to a power of two from {MIN_PAGE_SIZE} on"
        )
    return None
