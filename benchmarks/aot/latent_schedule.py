"""Compiles latent attention for TPUs that are not there, and reads the final schedule of its kernels.

    pip install 'jax[tpu]'
    python benchmarks/aot/latent_schedule.py --chips v4 v5e v5p v6e 7x --json out.json

Each row is one layer's cache write and attention in one program, with DeepSeek's sizes: latents of 512 and a rotated
part of 64. It must compile, update the whole cache in place, and copy nothing of its shape. A bundle of instructions
takes a cycle, so the bundles of the loop over blocks of keys are its time without waiting for memory; beside them stand
the cycles that copying a block's rows takes at the chip's bandwidth, and those of its products at the chip's peak.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.aot.kernel_matrix import CHIPS, NUM_PAGES, TABLE_WIDTH
from benchmarks.aot.tpu_schedule import BANDWIDTH_GBS, CLOCK_GHZ
from benchmarks.support.hlo_facts import Facts
from benchmarks.support.report import write_rows
from benchmarks.support.tpu_dump import dump_to, read_schedule, spill_slots
from palladio.pallas_kernels.kv_cache_update import CacheWrites
from palladio.pallas_kernels.latent_attention import (
    latent_attention,
    latent_cache_update,
    latent_page_shape,
    latent_shape,
)
from palladio.pallas_kernels.latent_attention.tpu_config import LatentBlocks, latent_blocks
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.target import Target

L, R, ROW_BYTES = 512, 64, 1280
PEAK_TFLOPS = {"v4": 137.5, "v5e": 197, "v5p": 229.5, "v6e": 918, "7x": 1153}  # of a core: a kernel runs on one


def compile_layer(chip: str, kind: str, num_heads: int, page_size: int, schedules: Path) -> dict[str, Any]:
    """One row: its figures, and in "wrong" what is wrong.

    Args:
        kind: decode or prefill.
        num_heads: of one device.
        schedules: where libtpu writes them; emptied afterwards.
    """
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())
    decode, N, S = kind == "decode", num_heads, page_size
    T, B = (64, 64) if decode else (2048, 16)

    def array(*sizes: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

    metadata = AttentionMetadata(array(B + 1), array(B), array(B, TABLE_WIDTH), array(), array(), kind)  # type: ignore[arg-type]
    writes = CacheWrites(array(T), array(T), max_runs=None if decode else T // S + 2 * B, one_each=decode)
    wide = jnp.bfloat16
    pages = array(*latent_page_shape(NUM_PAGES, S, L, R), dtype=wide)

    def step(pages: Any, q: Any, rotated: Any, latent: Any, key: Any, metadata: Any, writes: Any) -> tuple[Any, Any]:
        pages = latent_cache_update(pages, latent, key, writes, backend="tpu", target=target)
        queries = q.reshape(T, N, L), rotated.reshape(T, N, R)
        out = latent_attention(*queries, pages, metadata, scale=192**-0.5, backend="tpu", target=target)
        return pages, out.reshape(T, N * L)

    row: dict[str, Any] = {"chip": chip, "kind": kind, "heads": N, "page_size": S}
    of_tokens = (array(T, size, dtype=wide) for size in (N * L, N * R, L, R))
    try:
        program = aot_targets.compile_for(mesh, jax.jit(step, donate_argnums=0), (pages, *of_tokens, metadata, writes))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
        return row | {"wrong": [f"refused: {type(refusal).__name__}: {str(refusal).strip()[:400]}"]}
    copies = sum(Facts.of(program.hlo, shape, ()).cache_copies for shape in (pages.shape, (NUM_PAGES, 1, S, 640)))
    wrong = [f"copies the cache {copies} times"] if copies else []
    if program.alias_bytes != math.prod(pages.shape) * 2:
        wrong.append(f"updates {program.alias_bytes:,} bytes in place, the cache has {math.prod(pages.shape) * 2:,}")
    name = "latent_attention_decode" if decode else "latent_attention_chunk"
    shape = latent_shape(N, pages, metadata.block_table, wide)
    blocks = latent_blocks("decode" if decode else "chunk", shape, target)
    row |= bundles(chip, blocks, schedules, name) | {"spills": sum(spill_slots(schedules, name).values())}
    for file in schedules.iterdir():
        file.unlink()
    return row | {"compile_cpu_seconds": program.compile_cpu_seconds, "wrong": wrong}


def bundles(chip: str, blocks: LatentBlocks, schedules: Path, name: str) -> dict[str, Any]:
    """Return the figures of a block of keys: the two pieces that multiply most, without a mask and with one."""
    segments = sorted(read_schedule(schedules, name), key=lambda one: one.units["MXU"])[-2:]
    flops = 2 * blocks.rows * blocks.keys * (ROW_BYTES // 2 + L)
    plain, masked = sorted(one.bundles for one in segments)
    return {
        "rows": blocks.rows,
        "keys": blocks.keys,
        "unmasked_bundles": plain,
        "masked_bundles": masked,
        "copy_cycles": round(blocks.keys * ROW_BYTES / BANDWIDTH_GBS[chip] * CLOCK_GHZ[chip]),
        "product_cycles": round(flops / PEAK_TFLOPS[chip] / 1000 * CLOCK_GHZ[chip]),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chips", choices=CHIPS, nargs="+", required=True)
    parser.add_argument("--heads", type=int, nargs="+", default=(16, 128), help="of one device")
    parser.add_argument("--page-size", type=int, default=32)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        dump_to(Path(folder))
        for chip in args.chips:
            for kind in ("decode", "prefill"):
                for heads in args.heads:
                    rows.append(compile_layer(chip, kind, heads, args.page_size, Path(folder)))
                    print(rows[-1], flush=True)
    write_rows(rows, args.json)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
