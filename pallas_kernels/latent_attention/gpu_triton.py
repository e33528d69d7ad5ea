"""The backend for GPUs: Pallas kernels by way of Triton, for single tokens and for chunks of prompts.

A program has a tile of queries, each of its rows one head of one token, and loops over the rows of one request. For
single tokens several programs share the rows of a request, as in ragged paged attention, and the same kernel adds up
the parts.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.latent_attention.layout import DTYPES, LatentOptions
from palladio.pallas_kernels.latent_attention.triton_tile import LatentReader, Tile, TritonBlocks
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import WANTED_PROGRAMS, DecodeBlocks
from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_decode import Partial, Parts, combine_parts, plan_parts
from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_tile import LOWEST, Softmax, tile_lanes
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionOptions
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import product_precision, refusal, store

MAX_LATENT = {2: 512, 4: 128}  # lanes, by bytes of a number: tiles of more exceed a multiprocessor's registers


def attention(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions) -> jax.Array:
    """Attend: q [T, N, W], pages [P, S, W] → [T, N, L]; 0 for rows of padding.

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more, or latents are too large.
    """
    if (reason := refusal(options.target)) is not None:
        raise NotImplementedError(reason)
    if q.dtype.name not in DTYPES:
        raise NotImplementedError(f"it computes in {', '.join(DTYPES)}, not {q.dtype}")
    most = MAX_LATENT[max(q.dtype.itemsize, pages.dtype.itemsize)]
    if options.size > most:
        raise NotImplementedError(f"latents of {options.size} in {q.dtype}: its tiles have up to {most} (--dtype)")
    if metadata.kind == "decode":
        return _attend_single(q, pages, metadata, options, None)
    return _attend_single(q, pages, metadata, options, _attend_chunks(q, pages, metadata, options))


def chunk_tokens(shape: AttentionShape, target: Target) -> int:
    """Return the tokens of a block of a chunk."""
    del target  # sizes that suit one GPU suit the others
    return TritonBlocks.of(shape.num_heads, jnp.dtype(shape.dtype) == jnp.float32, single=False).queries


def _attend_single(
    q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions, onto: jax.Array | None
) -> jax.Array:
    """Compute tokens 0 … num_decodes - 1, token b of request b; in a decode step, all of them. onto: see
    triton_decode."""
    num_rows = metadata.num_requests if metadata.kind == "decode" else metadata.num_decodes
    T, N, L = *q.shape[:2], options.size
    blocks = TritonBlocks.of(N, q.dtype == jnp.float32, single=True)
    cuts = DecodeBlocks(keys=blocks.keys, spare_parts=-(-WANTED_PROGRAMS * blocks.heads // N))
    parts = plan_parts(metadata.kv_len, num_rows, None, cuts)
    num_parts = parts.request.shape[0]
    of_rows = jax.ShapeDtypeStruct((num_parts, N), jnp.float32)
    partial = _call(
        functools.partial(_attend_part, heads=blocks.heads, rows=blocks.rows),
        (q, pages, metadata.block_table, *parts),
        [jax.ShapeDtypeStruct((num_parts, N, L), jnp.float32), of_rows, of_rows],
        blocks,
        options,
        (-(-N // blocks.heads), num_parts),
        "latent_decode",
    )
    by_head = Partial(*(x.reshape(num_parts, N, 1, *x.shape[2:]) for x in partial))
    result = jax.ShapeDtypeStruct((T, N, L), q.dtype)
    return combine_parts(by_head, parts.ends, num_rows, result, AttentionOptions(1.0, target=options.target), onto)


def _attend_chunks(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions) -> jax.Array:
    """Compute tokens of requests num_decodes …; the result is 0 for tokens of no request, and undefined for the first
    num_decodes."""
    T, N, L = *q.shape[:2], options.size
    blocks = TritonBlocks.of(N, q.dtype == jnp.float32, single=False)
    plan = metadata.chunks_of(T, blocks.queries)
    of_blocks = (plan.request, plan.position, plan.first_token, plan.count, plan.num_blocks)
    (out,) = _call(
        functools.partial(_attend_block, heads=blocks.heads, queries=blocks.queries, rows=blocks.rows),
        (q, pages, metadata.block_table, *of_blocks, metadata.query_start[-1:]),
        [jax.ShapeDtypeStruct((T, N, L), q.dtype)],
        blocks,
        options,
        (-(-N // blocks.heads), plan.request.shape[0]),
        "latent_prefill",
    )
    return out


def _call(
    kernel: functools.partial[None],
    inputs: tuple[jax.Array, ...],
    results: list[jax.ShapeDtypeStruct],
    blocks: TritonBlocks,
    options: LatentOptions,
    grid: tuple[int, int],
    name: str,
) -> list[jax.Array]:
    """Call a kernel.

    Args:
        inputs: q, pages, block table, and the kernel's other inputs.
    """
    q, pages, block_table, *rest = inputs
    P, S, W = pages.shape
    dtype = jnp.promote_types(q.dtype, pages.dtype)
    reader = functools.partial(
        LatentReader,
        page_size=S,
        table_width=block_table.shape[1],
        size=options.size,
        rotated=options.rotated,
        dtype=dtype,
        precision=product_precision(dtype, options.target),
        block=blocks.keys,
        scale=options.scale,
    )
    operands = [q, pages.reshape(P * S, W), block_table.reshape(-1), *rest]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(kernel, reader=reader),
        grid=grid,
        in_specs=[anywhere] * len(operands),
        out_specs=[anywhere] * len(results),
        out_shape=results,
        compiler_params=pltriton.CompilerParams(num_warps=blocks.num_warps, num_stages=blocks.num_stages),
        interpret=options.target.interpret is not None,
        name=name,
    )(*operands)
    return out


def _attend_part(*refs: jax.Array, reader: functools.partial[LatentReader], heads: int, rows: int) -> None:
    """Run program (h, i): part i of a request's rows, for the heads from h · heads on."""
    q_ref, rows_ref, table_ref, *parts, output_ref, peak_ref, total_ref = refs
    of_parts, N = Parts(*parts), q_ref.shape[1]
    part = pl.program_id(1)
    head = pl.program_id(0) * heads + lax.iota(jnp.int32, rows)
    cache = reader(rows_ref=rows_ref, table_ref=table_ref)

    def attend() -> None:
        inside = (lax.iota(jnp.int32, rows) < heads) & (head < N)
        request, first, end = of_parts.request[part], of_parts.first[part], of_parts.end[part]
        q = cache.tile(q_ref, (jnp.full_like(head, request), head), inside)
        softmax = _over(cache, q, request, (first, end), None, end - first)
        _store(output_ref, (jnp.full_like(head, part), head), softmax.output, inside)
        store(peak_ref, (part, head), softmax.peak, inside)
        store(total_ref, (part, head), softmax.total, inside)

    pl.when(part < of_parts.ends[of_parts.ends.shape[0] - 1])(attend)


def _attend_block(
    *refs: jax.Array, reader: functools.partial[LatentReader], heads: int, queries: int, rows: int
) -> None:
    """Run program (h, i): block NB - 1 - i, so that blocks with most keys do not come last, for the heads from h ·
    heads on."""
    q_ref, rows_ref, table_ref, request, position, first_token, count, num_blocks_ref, num_tokens_ref, out_ref = refs
    T, N = q_ref.shape[:2]
    block = count.shape[0] - 1 - pl.program_id(1)
    row = lax.iota(jnp.int32, rows)
    offset, head = lax.div(row, heads), pl.program_id(0) * heads + lax.rem(row, heads)
    exists = (row < queries * heads) & (head < N)
    num_blocks = num_blocks_ref[0]
    cache = reader(rows_ref=rows_ref, table_ref=table_ref)

    def attend() -> None:
        first, size = position[block], count[block]
        where = first_token[block] + offset, head
        inside = exists & (offset < size)
        q = cache.tile(q_ref, where, inside)
        keys = jnp.int32(0), first + size
        softmax = _over(cache, q, request[block], keys, first + offset, first + 1)
        _store(out_ref, where, softmax.finish(jnp.float32(1)), inside)

    # The most blocks there can be exceed the real ones plus the blocks that padding tokens fill.
    def clear_padding() -> None:
        token = num_tokens_ref[0] + (block - num_blocks) * queries + offset
        zeros = jnp.zeros((rows, tile_lanes(out_ref.shape[2])), jnp.float32)
        _store(out_ref, (token, head), zeros, exists & (token < T))

    pl.when(block < num_blocks)(attend)
    pl.when(block >= num_blocks)(clear_padding)


def _over(
    cache: LatentReader,
    q: Tile,
    request: jax.Array,
    keys: tuple[jax.Array, jax.Array],
    position: jax.Array | None,
    num_seen: jax.Array,
) -> Softmax:
    """Attend to a request's rows from keys[0] to keys[1] - 1.

    Args:
        position: i32[M], position of each query, which sees rows up to it; None: it sees all rows.
        num_seen: number of rows, from keys[0] on, that every query sees.
    """
    first, end = keys
    softmax = Softmax.start(*q.latent.shape)

    def step(index: jax.Array, softmax: Softmax, *, masked: bool) -> Softmax:
        start = first + index * cache.block
        rows = cache.read(request, start, end if masked else None)
        scores = cache.scores(q, rows)
        if masked:
            tokens = cache.tokens(start)[None, :]
            seen = tokens < end if position is None else tokens <= position[:, None]
            scores = jnp.where(seen, scores, LOWEST)
        return softmax.add(scores, rows.latent, cache.precision)

    full = lax.div(jnp.maximum(num_seen, 0), cache.block)
    softmax = lax.fori_loop(0, full, functools.partial(step, masked=False), softmax)
    done: Softmax = lax.fori_loop(
        full, pl.cdiv(end - first, cache.block), functools.partial(step, masked=True), softmax
    )
    return done


def _store(ref: jax.Array, index: tuple[jax.Array, jax.Array], values: jax.Array, valid: jax.Array) -> None:
    """Store values [M, L'] into rows of ref [..., L]."""
    lane = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    cells = (*(lax.broadcast_in_dim(one, values.shape, (0,)) for one in index), lane)
    store(ref, cells, values, lax.broadcast_in_dim(valid, values.shape, (0,)) & (lane < ref.shape[-1]))
