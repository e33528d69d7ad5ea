"""Reads a TPU kernel's final schedule, without a TPU: cycles and units of its inner loop over blocks of keys.

    pip install 'jax[tpu]'
    python benchmarks/tpu_schedule.py --chip v6e                          # both kernels, sizes as the engine picks them
    python benchmarks/tpu_schedule.py --chip v6e --sweep                  # other sizes too, best first

libtpu writes the schedule of what it compiles: one line a bundle of instructions, and how many slots of each unit it
uses. A bundle takes a cycle, so the bundles of the inner loop are its time without waiting for memory. Loops that
depend on data (pages to copy) count once.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

UNITS = ("MXU", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "FILL", "VSTORE", "SPILL", "SALU")
CLOCK_GHZ = {"v4": 1.05, "v5e": 1.5, "v5p": 1.75, "v6e": 1.75, "7x": 2.1}
BANDWIDTH_GBS = {"v4": 1228, "v5e": 819, "v5p": 2765, "v6e": 1640, "7x": 3690}
# Bundles of tpu-inference's RPA v3 for the same work: 32 query heads, 8 kv heads of 128, bfloat16, 512 keys; decode,
# and chunks of 512 rows a kv head (jax 0.10.2, libtpu 0.0.42).
RPA_V3 = {
    ("v5e", "decode"): 995,
    ("v6e", "decode"): 1008,
    ("7x", "decode"): 1005,
    ("v5e", "prefill"): 10504,
    ("v6e", "prefill"): 7612,
    ("7x", "prefill"): 6984,
}
SWEEP = {  # rows, keys, row_chunk, key_chunk
    "decode": [(8, 256, 8, 256), (8, 1024, 8, 1024)],
    "prefill": [(512, 512, 256, 512), (512, 512, 128, 512), (512, 512, 256, 256), (512, 512, 512, 256)],
}
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:(LH|LB|LE|PB|PF|CT)\s*)?:\s*((?:>\s*)*)\{")


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Bundles in a row without a label between them, so run one after the other.

    Attributes: depth: loops around it. bundles: how many. units: slots used, by unit.
    """

    depth: int
    bundles: int
    units: dict[str, int]


def read_schedule(folder: Path, kernel: str) -> list[Segment]:
    """Of the last compiled kernel whose name holds `kernel`."""
    file = max(f for f in folder.glob(f"*{kernel}*final_bundles.txt") if "schedule-analysis" not in f.name)
    usage = max(folder.glob(f"*{kernel}*final_hlo-static-per-bundle-utilization.txt"))
    rows = [list(map(int, parts)) for line in usage.open() if (parts := line.split()) and all(map(str.isdigit, parts))]
    rows = rows[1:]  # the first line holds the capacities
    segments: list[Segment] = []
    labels = [match.groups() for line in file.open() if (match := _BUNDLE.match(line))]
    start = 0
    for i, (label, _) in enumerate([*labels[1:], ("end", "")], start=1):
        if label is not None or (i < len(labels) and labels[i][1].count(">") != labels[i - 1][1].count(">")):
            used = [sum(column) for column in zip(*rows[start:i], strict=True)] or [0] * len(UNITS)
            units = dict(zip(UNITS, used, strict=True))
            segments.append(Segment(labels[start][1].count(">"), i - start, units))
            start = i
    return segments


def inner_blocks(segments: Sequence[Segment]) -> list[Segment]:
    """The two that multiply most: a block of keys without and with a mask, in the order of their size."""
    multiplying = sorted((s for s in segments if s.units["MXU"]), key=lambda s: s.units["MXU"], reverse=True)
    return sorted(multiplying[:2], key=lambda s: s.bundles)


def child(chip: str, kind: str, rows: int, keys: int, row_chunk: int, key_chunk: int) -> None:
    """Compiles one kernel in this process, which dumps its schedule."""
    import aot_targets
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from kernel_matrix import CHIPS

    from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata, kv_page_shape, tpu, tpu_config
    from palladio.pallas_kernels.ragged_paged_attention.metadata import AttentionOptions
    from palladio.pallas_kernels.ragged_paged_attention.plan import BlockPlan
    from palladio.pallas_kernels.target import Target

    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())

    def array(*sizes: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

    B, N, K, H, S = 64, 32, 8, 128, 64
    queries = 1 if kind == "decode" else rows // (N // K)
    NB = B if kind == "decode" else 16
    blocks = tpu_config.TpuBlocks(queries, keys, tpu_config.VMEM[chip] * 8 // 10, row_chunk, key_chunk)
    metadata = AttentionMetadata(array(B + 1), array(B), array(B, 128), array(), array(), "decode")
    plan = BlockPlan(*(array(NB) for _ in range(4)), array(1), array(NB * queries), queries)

    def call(q: Any, kv_pages: Any, metadata: Any, plan: Any) -> Any:
        return tpu._attend(q, kv_pages, metadata, AttentionOptions(H**-0.5, target=target), plan, blocks)

    args = (
        array(NB, queries, N, H, dtype=jnp.bfloat16),
        array(*kv_page_shape(2048, K, S, H), dtype=jnp.bfloat16),
        metadata,
        plan,
    )
    aot_targets.compile_for(mesh, jax.jit(call), args)


def measure(chip: str, kind: str, rows: int, keys: int, row_chunk: int, key_chunk: int) -> dict[str, Any]:
    """One row of the table: bundles of a block of keys without and with a mask, and what they use."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        command = [
            sys.executable,
            __file__,
            "--chip",
            chip,
            "--child",
            kind,
            *map(str, (rows, keys, row_chunk, key_chunk)),
        ]
        environment = os.environ | {"LIBTPU_INIT_ARGS": flags}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"chip": chip, "kind": kind, "rows": rows, "keys": keys, "error": done.stderr.strip()[-300:]}
        unmasked, masked = inner_blocks(read_schedule(Path(folder), "paged_attention"))
    microseconds = unmasked.bundles / CLOCK_GHZ[chip] / 1000
    copied = keys * 8 * 256 * 2
    return {
        "chip": chip,
        "kind": kind,
        "rows": rows,
        "keys": keys,
        "row_chunk": row_chunk,
        "key_chunk": key_chunk,
        "unmasked_bundles": unmasked.bundles,
        "masked_bundles": masked.bundles,
        "spills": unmasked.units["SPILL"] + masked.units["SPILL"],
        "units": unmasked.units,
        "compute_us": microseconds,
        "copy_us": copied / BANDWIDTH_GBS[chip] / 1000,
        "ratio_to_rpa_v3": RPA_V3.get((chip, kind), 0)
        * (rows * keys if kind == "prefill" else keys)
        / (512 * 512 if kind == "prefill" else 512)
        / max(unmasked.bundles, masked.bundles),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chip", choices=CLOCK_GHZ, nargs="+", required=True)
    parser.add_argument("--kind", choices=("decode", "prefill"), nargs="+", default=("decode", "prefill"))
    parser.add_argument("--sweep", action="store_true", help="several sizes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(args.chip[0], args.child[0], *map(int, args.child[1:]))
        return 0
    rows = []
    for chip in args.chip:
        for kind in args.kind:
            sizes = [(512, 512, 512, 512)]
            if args.sweep:
                sizes += SWEEP[kind]
            for size in sizes:
                rows.append(measure(chip, kind, *size))
                print(
                    {key: value for key, value in rows[-1].items() if key != "units"}, rows[-1].get("units"), flush=True
                )
    if args.json:
        report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv), "rows": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
