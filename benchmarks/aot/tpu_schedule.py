"""Reads a TPU kernel's final schedule, without a TPU: cycles and units of its inner loop over blocks of keys.

    pip install 'jax[tpu]'
    python benchmarks/aot/tpu_schedule.py table --chip v5e v6e 7x  # both kernels, sizes as the engine picks them
    python benchmarks/aot/tpu_schedule.py sweep --chip v6e --write            # other sizes too; the best go to tuned/

libtpu writes the schedule of what it compiles: one line a bundle of instructions, and how many slots of each unit it
uses. A bundle takes a cycle, so the bundles of the inner loop are its time without waiting for memory. Loops over pages
to copy depend on data and are left out; loops over kv heads and rows are counted as often as they run.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.support.tpu_dump import UNITS, Segment, dump_flags, read_schedule

CLOCK_GHZ = {"v4": 1.05, "v5e": 1.5, "v5p": 1.75, "v6e": 1.75, "7x": 2.1}
BANDWIDTH_GBS = {"v4": 1228, "v5e": 819, "v5p": 2765, "v6e": 1640, "7x": 3690}
# Bundles of tpu-inference's RPA v3 for the same work: 32 query heads, 8 kv heads of 128, bfloat16, 512 keys (decode: an
# eighth of the 4,096 that it takes at once), and chunks of 512 rows a kv head (jax 0.10.2, libtpu 0.0.42).
RPA_V3 = {
    ("v6e", "decode"): 863,
    ("7x", "decode"): 851,
    ("v5e", "prefill"): 10504,
    ("v6e", "prefill"): 7612,
    ("7x", "prefill"): 6984,
}
TUNED = Path(__file__).resolve().parents[2] / "pallas_kernels" / "tuned"
# What a sweep tries beside the engine's own choice. ones: see TpuBlocks.multiplies_ones.
SWEEP: dict[str, list[dict[str, int]]] = {
    "decode": [{"keys": 256}, {"keys": 1024}],
    "prefill": [{"heads": 4}, {"rows": 256}, {"keys": 256}],
}
GROUP, NUM_KV_HEADS, PAGE = 4, 8, 64  # queries per KV head, and what flags may change


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel to compile. changes: changes of its sizes, in a sweep."""

    chip: str
    kind: str
    head_size: int
    kv_dtype: str
    num_kv_heads: int
    page_size: int
    changes: dict[str, int]

    @property
    def is_compared(self) -> bool:
        """With figures of other kernels."""
        sizes = self.head_size, self.kv_dtype, self.num_kv_heads, self.page_size
        return sizes == (128, "bfloat16", NUM_KV_HEADS, PAGE)


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of a compiled kernel.

    Attributes:
        rows: rows of one kv head.
        keys: keys of a block.
        heads: heads at once; 0: all (decode).
        limit_rows: rows of an iteration of the loop that writes limits.
    """

    rows: int
    keys: int
    heads: int
    limit_rows: int
    ones: bool


def inner_blocks(segments: Sequence[Segment], blocks: Blocks, num_kv_heads: int) -> tuple[Segment, Segment]:
    """A block of keys of all heads without and with a mask: the two segments of loops over blocks that multiply most,
    as often as they run, and with a mask the loop before it that writes the limits."""
    loops = [i for i, segment in enumerate(segments) if segment.depth > 1]
    order = sorted(loops, key=lambda i: segments[i].units["MXU"], reverse=True)
    plain, masked = sorted(order[:2])
    turns = num_kv_heads // blocks.heads if blocks.heads else 1
    pair = [_times(segments[i], turns) for i in (plain, masked)]
    between = [s for s in segments[plain + 1 : masked] if s.units["VSTORE"] >= 16 and not s.units["VLOAD"]]
    if blocks.heads and between:
        limits = _times(max(between, key=lambda s: s.units["VSTORE"]), blocks.rows // blocks.limit_rows)
        units = {unit: pair[1].units[unit] + limits.units[unit] for unit in UNITS}
        pair[1] = Segment(pair[1].depth, pair[1].bundles + limits.bundles, units)
    return pair[0], pair[1]


def _times(segment: Segment, count: int) -> Segment:
    return Segment(segment.depth, segment.bundles * count, {unit: n * count for unit, n in segment.units.items()})


def short_bundles(segments: Sequence[Segment], masked: Segment) -> dict[str, Any]:
    """Return figures of requests of one token: bundles of their last keys where fewer than a block's are computed,
    fewest keys first; and of clearing a page after them."""
    multiplying = [s.bundles for s in segments if s.depth == 2 and s.units["MXU"] and s.units["VSTORE"]]
    clearing = [s.bundles for s in segments if s.depth == 3 and s.units["VLOAD"] and s.units["VSTORE"]]
    fewer = sorted(n for n in multiplying if n < 0.9 * masked.bundles)
    return {"last_keys_bundles": fewer, "clear_page_bundles": max(clearing, default=0)}


def shared_bundles(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return figures of a shared grid step, with waits for its copies, but without the start of the next step's
    copies."""
    turns = [s for s in segments if s.depth == 1 and s.units["MXU"] >= 16]
    names = ("shared_turn", "pair_turn")  # of up to 128 keys each, and of up to 256
    return {
        f"{name}_{unit}": figure
        for name, turn in zip(names, turns, strict=False)
        for unit, figure in (("bundles", turn.bundles), ("spills", turn.units["SPILL"]))
    }


def copy_bundles(segments: Sequence[Segment], pages: int) -> int:
    """Return the bundles that start the copies of a block's pages: the first scalar piece of the loop over blocks with
    more bundles than pages. The pieces after it start those of the next request, or of several."""
    scalar = (s for s in segments if s.depth == 2 and not any(s.units[unit] for unit in UNITS if unit != "SALU"))
    return next((s.bundles for s in scalar if s.bundles > pages), 0)


def child(kernel: Kernel, report: str) -> None:
    """Compiles one kernel in this process, which dumps its schedule; writes its sizes to `report`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from benchmarks.aot import aot_targets
    from benchmarks.aot.kernel_matrix import CHIPS
    from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata, kv_page_shape, scale_page_shape
    from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
    from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionOptions
    from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import BlockPlan
    from palladio.pallas_kernels.ragged_paged_attention.tpu import tpu, tpu_config
    from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_chunk import limit_rows
    from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_grid import GridPlan, SharedSteps
    from palladio.pallas_kernels.target import Target

    chip, kind, head_size, changes, kv_dtype = (
        kernel.chip,
        kernel.kind,
        kernel.head_size,
        kernel.changes,
        kernel.kv_dtype,
    )
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())

    def array(*sizes: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

    B, N, K, H, S = 64, GROUP * kernel.num_kv_heads, kernel.num_kv_heads, head_size, kernel.page_size
    shape = AttentionShape(N, K, H, S, 128, B, jnp.bfloat16, jnp.dtype(kv_dtype))
    sizes_of = tpu_config.decode_blocks if kind == "decode" else tpu_config.chunk_blocks
    blocks = sizes_of(shape, target, changes)
    queries = blocks.queries
    NB = B if kind == "decode" else 16
    metadata = AttentionMetadata(array(B + 1), array(B), array(B, 128), array(), array(), "decode")
    plan: Any = BlockPlan(array(NB), array(NB), array(NB), array(NB), array(1), queries)
    if kind == "decode":
        shared = (
            SharedSteps(array(B), (array(B),) * blocks.together, array(B * blocks.longest // S))
            if blocks.together > 1
            else None
        )
        plan = GridPlan(plan, shared)

    def call(q: Any, kv_pages: Any, metadata: Any, plan: Any, scales: Any) -> Any:
        q = q.reshape(NB * queries, N, H)  # rows as the products around attention give and take them
        options = AttentionOptions(H**-0.5, target=target, row_scales=scales)
        if kind == "decode":
            out = tpu.attend_tokens(q, kv_pages, metadata, options, plan, blocks)
        else:
            packed = tpu.pack_chunks(q, K, NB * queries)
            out = tpu.attend_chunks(packed, jnp.zeros_like(packed), 0, kv_pages, metadata, options, plan, blocks)
            out = tpu.unpack_tokens(out.transpose(2, 0, 1, 3), H)
        return out.reshape(NB * queries, N * H)

    args = (
        array(NB * queries, N * H, dtype=jnp.bfloat16),
        array(*kv_page_shape(2048, K, S, H), dtype=jnp.dtype(kv_dtype)),
        metadata,
        plan,
        array(*scale_page_shape(2048, K, S), dtype=jnp.float32) if kv_dtype == "int8" else None,
    )
    program = aot_targets.compile_for(mesh, jax.jit(call), args)
    sizes = {"rows": 8 if kind == "decode" else queries * (N // K), "keys": blocks.keys, "ones": blocks.multiplies_ones}
    sizes |= {"heads": 0 if kind == "decode" else blocks.heads, "limit_rows": limit_rows(queries)}
    compiled = {"sizes": sizes, "together": blocks.together, "compile_cpu_seconds": program.compile_cpu_seconds}
    Path(report).write_text(json.dumps(compiled))


def measure(kernel: Kernel) -> dict[str, Any]:
    """One row of the table: bundles of a block of keys without and with a mask, and what they use."""
    row, chip, kind = dataclasses.asdict(kernel), kernel.chip, kernel.kind
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        given = [json.dumps(row), str(report)]
        environment = os.environ | {"LIBTPU_INIT_ARGS": dump_flags(Path(folder))}
        command = [sys.executable, __file__, "child", *given]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return row | {"error": done.stderr.strip()[-300:]}
        compiled = json.loads(report.read_text())
        blocks = Blocks(**compiled["sizes"])
        segments = read_schedule(Path(folder), "paged_attention")
        plain, masked = inner_blocks(segments, blocks, kernel.num_kv_heads)
    from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size

    if kind == "decode":
        row |= short_bundles(segments, masked) | shared_bundles(segments) | {"together": compiled["together"]}
    itemsize = 2 if kernel.kv_dtype == "bfloat16" else 1
    copied = blocks.keys * kernel.num_kv_heads * 2 * padded_head_size(kernel.head_size) * itemsize
    compute, copy = plain.bundles / CLOCK_GHZ[chip] / 1000, copied / BANDWIDTH_GBS[chip] / 1000
    work = blocks.keys * (blocks.rows if kind == "prefill" else 1)
    row |= dataclasses.asdict(blocks) | {
        "unmasked_bundles": plain.bundles,
        "masked_bundles": masked.bundles,
        "bundles_per_unit": max(plain.bundles, masked.bundles) / work,
        "spills": plain.units["SPILL"] + masked.units["SPILL"],
        "units": plain.units,
        "copy_bundles": copy_bundles(segments, blocks.keys // kernel.page_size),
        "pages": blocks.keys // kernel.page_size,
        "copied_bytes": copied,
        "compute_us": compute,
        "copy_us": copy,
        "compute_per_copy": compute / copy,
        "compile_cpu_seconds": compiled["compile_cpu_seconds"],
    }
    if (chip, kind) in RPA_V3 and kernel.is_compared:
        scale = work / (512 * 512 if kind == "prefill" else 512)
        peers = RPA_V3[chip, kind] * scale
        row |= {"ratio_to_rpa_v3": peers / plain.bundles, "ratio_to_rpa_v3_masked": peers / masked.bundles}
    return row


def write_tuned(chip: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write, for each kernel and head size, the changes with the fewest bundles for the same work."""
    file = TUNED / chip / "ragged_paged_attention.json"
    table = json.loads(file.read_text()) if file.is_file() else {}
    for kind, size in {(row["kind"], row["head_size"]) for row in rows}:
        mine = [row for row in rows if (row["kind"], row["head_size"]) == (kind, size) and "error" not in row]
        if mine:
            name = f"{'decode' if kind == 'decode' else 'chunk'} h{64 if size <= 64 else -(-size // 128) * 128}"
            table[name] = min(mine, key=lambda row: row["bundles_per_unit"])["changes"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("table", "sweep"))
    parser.add_argument("--chip", choices=CLOCK_GHZ, nargs="+", required=True)
    parser.add_argument("--kind", choices=("decode", "prefill"), nargs="+", default=("decode", "prefill"))
    parser.add_argument("--head-size", type=int, nargs="+", default=(128,))
    parser.add_argument("--kv-dtype", default="bfloat16")
    parser.add_argument("--page-size", type=int, default=PAGE)
    parser.add_argument("--kv-heads", type=int, default=NUM_KV_HEADS, help="of one device")
    parser.add_argument("--write", action="store_true", help="of a sweep: the best sizes go to pallas_kernels/tuned")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for chip in args.chip:
        for kind in args.kind:
            for head_size in args.head_size:
                for changes in ({}, *(SWEEP[kind] if args.command == "sweep" else ())):
                    sizes = head_size, args.kv_dtype, args.kv_heads, args.page_size
                    rows.append(measure(Kernel(chip, kind, *sizes, changes)))
                    print({key: value for key, value in rows[-1].items() if key != "units"}, flush=True)
                    if args.json:  # after each row: what was compiled is kept if the rest is not
                        report = {
                            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                            "command": " ".join(sys.argv),
                            "rows": rows,
                        }
                        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if args.write:
            write_tuned(chip, [row for row in rows if row["chip"] == chip])
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Kernel(**json.loads(sys.argv[2])), sys.argv[3])
    else:
        sys.exit(main())
