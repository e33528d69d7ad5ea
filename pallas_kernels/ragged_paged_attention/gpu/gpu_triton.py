"""The backend for GPUs: Pallas kernels by way of Triton, for decode and for ragged prefill.

Both are ordinary kernels to XLA, so a decode step stays one CUDA graph with every version of JAX that we support.
Products run on the tensor cores; pages are read straight from the cache, only as far as each request's keys go.
"""

import math

import jax

from palladio.pallas_kernels.ragged_paged_attention.gpu import triton_decode, triton_prefill
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import DecodeBlocks, PrefillBlocks
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import QUANTIZED
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import DTYPES, refusal

MAX_HEAD_SIZE = 256
INT32 = 2**31


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H]; 0 for rows of padding.

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more, or the kernels do not support the
            head size, the dtype or the size of the cache.
    """
    if (reason := refusal(options.target) or _refusal(q, kv_pages)) is not None:
        raise NotImplementedError(reason)
    shape = _shape_of(q, kv_pages, metadata)
    decode = DecodeBlocks.of(shape)
    if metadata.kind == "decode":
        return triton_decode.attend(q, kv_pages, metadata, options, decode)
    out = triton_prefill.attend(q, kv_pages, metadata, options, PrefillBlocks.of(shape))
    return triton_decode.attend(q, kv_pages, metadata, options, decode, onto=out)


def attend_decodes(
    q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions, onto: jax.Array
) -> jax.Array:
    """Write the first num_decodes tokens into `onto` [T, N, H], which has the chunks' outputs."""
    decode = DecodeBlocks.of(_shape_of(q, kv_pages, metadata))
    return triton_decode.attend(q, kv_pages, metadata, options, decode, onto=onto)


def chunk_tokens(shape: AttentionShape, target: Target) -> int:
    """Return the tokens of a prefill block, for plan_attention."""
    del target  # sizes that suit one GPU suit the others
    return PrefillBlocks.of(shape).queries(shape.group)


def addressable_pages(num_pages: int, page_elements: int, itemsize: int) -> int:
    """Return how many of a layer's `num_pages` pages the kernels can address.

    Pallas counts a cache of more than 4 GiB in 64 bits, and Triton reads the 32 bits of a smaller one as a signed
    number of elements: so a cache of 8 bits must not take 2 to 4 GiB. Passing two halves does not help, for XLA copies
    them; nor can a kernel add to a pointer itself.
    """
    if itemsize == 1 and INT32 < num_pages * page_elements <= 2 * INT32:
        return INT32 // page_elements
    return num_pages


def _shape_of(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata) -> AttentionShape:
    B, Pmax = metadata.block_table.shape
    return AttentionShape(
        num_heads=q.shape[1],
        num_kv_heads=kv_pages.shape[1],
        head_size=q.shape[2],
        page_size=kv_pages.shape[2],
        table_width=Pmax,
        num_rows=B,
        dtype=q.dtype,
        kv_dtype=kv_pages.dtype,
    )


def _refusal(q: jax.Array, kv_pages: jax.Array) -> str | None:
    """Return why the kernels cannot do this call; None: they can."""
    head_size = q.shape[-1]
    if head_size > MAX_HEAD_SIZE:
        return f"heads of {head_size} exceed {MAX_HEAD_SIZE}: their tiles exceed a multiprocessor's registers"
    if q.dtype.name not in DTYPES or kv_pages.dtype.name not in (*DTYPES, *QUANTIZED):
        return f"it computes in {', '.join(DTYPES)}, not {q.dtype} with a cache of {kv_pages.dtype}"
    num_pages, *page = kv_pages.shape
    if addressable_pages(num_pages, math.prod(page), kv_pages.dtype.itemsize) < num_pages:
        size = math.prod(kv_pages.shape) / 2**30
        return f"a layer's cache of 8 bits may take up to 2 GiB or more than 4 GiB, not {size:.1f}: change its pages"
    return None
