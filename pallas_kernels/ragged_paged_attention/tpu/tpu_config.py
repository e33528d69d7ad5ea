"""Block sizes of the TPU kernels, and the limits of these kernels."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_grid import SHORT
from palladio.pallas_kernels.target import Target

MIB = 2**20
TUNED = Path(__file__).resolve().parents[2] / "tuned"
VMEM = {"v4": 16 * MIB, "v5e": 128 * MIB, "v5p": 64 * MIB, "v6e": 128 * MIB, "7x": 64 * MIB}
SPILLS = 2 * MIB  # spilled registers, in addition to a quarter of a kernel's buffers
MAX_TABLE_WIDTH = 32_768  # pages a request: of 1 MiB of scalar memory, four rows of the block table take half
WIDE_MATRIX_UNIT = ("v6e", "7x")  # 256 columns: a product with 128 leaves half of them idle
MAX_ROWS = 8_192  # requests of a step: scalar memory holds six numbers of each, and five of each block of queries
TOGETHER = 4  # short requests of a grid step
MOST_ROWS = 16  # among which those are found
IN_OUT = 1 * MIB  # of vector memory for those rows
MAX_SHARED_NUMBERS = 32_768  # in scalar memory, for shared grid steps
ROW_TILE = {1: 32, 2: 16, 4: 8}  # rows of a native tile, by the bytes of an element


@dataclasses.dataclass(frozen=True, slots=True)
class TpuBlocks:
    """Sizes of one kernel.

    Attributes:
        queries: tokens of a request at once.
        keys: keys of the cache at once: a multiple of the page size.
        vmem: bytes of vector memory that the kernel may use: no more than it needs, since XLA moves all other data out.
        key_chunk: keys of one product, for requests of one token.
        row_chunk, heads: for chunks of prompts, rows of one product, and kv heads that are processed at once.
        multiplies_ones: see tpu_tile.KernelSizes.
        together: requests of one token and up to 128 keys that share a grid step; 1: none does. Half as many with more
            than 128 keys share one.
        longest: most keys of a request that shares a grid step.
        rows: rows of requests of one token that the pipeline brings at once.
        halves: in shared grid steps, a tile of rows has the query heads of two kv heads.
    """

    queries: int
    keys: int
    vmem: int
    key_chunk: int
    row_chunk: int
    heads: int
    multiplies_ones: bool
    together: int = 1
    longest: int = 0
    rows: int = 1
    halves: bool = False

    def alone(self) -> "TpuBlocks":
        """Return the sizes without shared grid steps."""
        return dataclasses.replace(self, together=1, longest=0, rows=1, halves=False)

    def up_to(self, keys: int) -> "TpuBlocks":
        """Return the sizes where requests with more than `keys` keys do not share grid steps."""
        longest = min(self.longest, keys // SHORT * SHORT)
        return dataclasses.replace(self, longest=longest) if longest else self.alone()


def chunk_block(shape: AttentionShape, target: Target) -> int:
    """Return the tokens of a block of a chunk."""
    return chunk_blocks(shape, target).queries


NO_CHANGES: Mapping[str, int] = MappingProxyType({})


def decode_blocks(shape: AttentionShape, target: Target, changes: Mapping[str, int] = NO_CHANGES) -> TpuBlocks:
    """Choose sizes for requests of one token. changes: sizes that a sweep tries instead of the usual."""
    sizes = _sizes(target, "decode", shape) | dict(changes)
    return _sharing(shape, target, _fit(shape, target, 1, sizes), sizes.get("together", TOGETHER))


def _sharing(shape: AttentionShape, target: Target, blocks: TpuBlocks, wanted: int) -> TpuBlocks:
    """Let short requests share grid steps, if they can."""
    if SHORT % shape.page_size:
        return blocks
    most = min(MOST_ROWS, max(IN_OUT // _in_out_bytes(shape), 2))
    rows = math.gcd(shape.num_rows, 1 << (most.bit_length() - 1))  # a power of 2, see the kernel
    together = min(wanted, blocks.keys // SHORT)
    longest = 2 * SHORT if together >= 4 else SHORT
    while longest and shape.num_rows * (wanted + 1 + longest // shape.page_size) > MAX_SHARED_NUMBERS:
        longest -= SHORT
    needed = _bytes(shape, 1, blocks.keys, rows)
    if min(rows, together) < 2 or not longest or needed > _limit(target):
        return blocks
    vmem = min(_limit(target), needed + needed // 4 + SPILLS)
    blocks = dataclasses.replace(blocks, together=together, longest=longest, rows=rows)
    return dataclasses.replace(blocks, halves=shape.group <= 4, vmem=vmem)


def chunk_blocks(shape: AttentionShape, target: Target, changes: Mapping[str, int] = NO_CHANGES) -> TpuBlocks:
    """Choose sizes for chunks of prompts. changes: see decode_blocks."""
    sizes = _sizes(target, "chunk", shape) | dict(changes)
    queries = max(16, sizes["rows"] // shape.group)
    return _fit(shape, target, 1 << (queries.bit_length() - 1), sizes)  # a power of 2, see the kernel


def check(shape: AttentionShape) -> None:
    """Check that the kernels support a layer.

    Raises:
        NotImplementedError: they do not; the message says what to change.
    """
    if jnp.dtype(shape.dtype) not in (jnp.float32, jnp.bfloat16):
        raise NotImplementedError(f"TPUs compute in bfloat16 or float32, not in {jnp.dtype(shape.dtype)} (--dtype)")
    tile = ROW_TILE.get(jnp.dtype(shape.kv_dtype).itemsize)
    if tile is None or jnp.dtype(shape.kv_dtype) == jnp.float16:
        raise NotImplementedError(f"a cache of {jnp.dtype(shape.kv_dtype)} (--kv-cache-dtype)")
    if shape.page_size % tile:
        raise NotImplementedError(
            f"pages of {shape.page_size} tokens: with a cache of {jnp.dtype(shape.kv_dtype)} they must be a multiple "
            f"of {tile} (--page-size)"
        )
    if jnp.dtype(shape.kv_dtype) == jnp.int8 and LANES % shape.page_size and shape.page_size % LANES:
        raise NotImplementedError(
            f"pages of {shape.page_size} tokens: with a cache of int8 they must be 32, 64 or a multiple of {LANES} "
            f"(--page-size)"
        )
    if shape.table_width > MAX_TABLE_WIDTH:
        raise NotImplementedError(
            f"{shape.table_width} pages a request: scalar memory holds the numbers of {MAX_TABLE_WIDTH:,} (a larger "
            f"--page-size or a smaller --context-length)"
        )
    if shape.num_rows > MAX_ROWS:
        raise NotImplementedError(
            f"{shape.num_rows} requests at once: scalar memory holds those of {MAX_ROWS:,} (--max-running-requests)"
        )


def _fit(shape: AttentionShape, target: Target, queries: int, sizes: dict[str, int]) -> TpuBlocks:
    """Choose the largest blocks up to the desired sizes whose buffers fit."""
    keys = sizes["keys"]
    limit = _limit(target)
    unit = math.lcm(shape.page_size, LANES)  # whole pages, and scores of whole rows of lanes
    keys = max(keys // unit, 1) * unit
    while (needed := _bytes(shape, queries, keys)) > limit:
        if keys > max(unit, 256):
            keys = max(keys // 2 // unit, 1) * unit
        elif queries > 16:
            queries //= 2
        elif keys > unit:
            keys = max(keys // 2 // unit, 1) * unit
        else:
            raise NotImplementedError(
                f"{shape.num_kv_heads} kv heads of {shape.head_size} in pages of {shape.page_size}: one block is "
                f"larger than the vector memory of TPU {target.kind} (a smaller --page-size)"
            )
    heads = sizes["heads"] if shape.num_kv_heads > 1 else 1
    # One head's stages overlap with another's, or else with those of its other rows.
    row_chunk = sizes.get("row_chunk", shape.group * queries // (1 if heads > 1 else 2))
    vmem = min(limit, needed + needed // 4 + SPILLS)
    return TpuBlocks(queries, keys, vmem, sizes.get("key_chunk", keys), row_chunk, heads, bool(sizes["ones"]))


def _limit(target: Target) -> int:
    """Return the bytes of vector memory for a kernel."""
    return int(VMEM.get(target.kind, min(VMEM.values())) * 0.8)


def _in_out_bytes(shape: AttentionShape, queries: int = 1) -> int:
    """Return the bytes of two buffers of a block of queries, and of its output."""
    rows = shape.num_kv_heads * (-(-shape.group // 8) * 8 if queries == 1 else shape.group * queries)
    return 4 * rows * max(shape.row_width // 2, LANES) * jnp.dtype(shape.dtype).itemsize


def _bytes(shape: AttentionShape, queries: int, keys: int, blocks: int = 1) -> int:
    """Return the bytes of a kernel's buffers, with some room for values in flight. blocks: blocks of queries that
    arrive at once."""
    rows = shape.num_kv_heads * (-(-shape.group // 8) * 8 if queries == 1 else shape.group * queries)
    head = max(shape.row_width // 2, LANES)
    itemsize = jnp.dtype(shape.dtype).itemsize
    cache = 2 * shape.num_kv_heads * keys * shape.row_width * jnp.dtype(shape.kv_dtype).itemsize
    in_out = blocks * _in_out_bytes(shape, queries)
    state = rows * (2 * LANES + head) * 4
    of_head = rows // shape.num_kv_heads
    if queries == 1:
        return cache + in_out + state + of_head * keys * 3 * 4
    # The scratch of tpu_chunk, of at most two iterations, and as much again for values in flight.
    return cache + in_out + state + of_head * (keys * (4 + 2 * 2 * (4 + itemsize)) + 2 * LANES * 4)


def _sizes(target: Target, kind: str, shape: AttentionShape) -> dict[str, int]:
    """Return rows (queries times heads), keys and so on: as a sweep found for this kind of device, or the usual
    ones."""
    ones = int(target.kind in WIDE_MATRIX_UNIT and kind == "chunk" and shape.row_width <= 2 * LANES)
    if target.interpret is not None:  # small, so that small cases have several
        return {"rows": 64, "keys": LANES, "heads": 2, "ones": ones}
    tuned = _table(target.kind).get(f"{kind} h{shape.row_width // 2}", {})
    return {"rows": 512, "keys": 512, "heads": 2, "ones": ones} | tuned


@functools.cache
def _table(kind: str) -> dict[str, dict[str, int]]:
    file = TUNED / kind / "ragged_paged_attention.json"
    if not file.is_file():
        return {}
    table: dict[str, dict[str, int]] = json.loads(file.read_text(encoding="utf-8"))
    return table
