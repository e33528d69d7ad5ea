"""Compiles the GPU kernels for an H200 that is not there, and reads what ptxas says of each.

    pip install 'jax-cuda13-plugin[with-cuda]'
    python benchmarks/aot/aot_gpu_kernels.py                     # every head size, dtype and feature
    python benchmarks/aot/aot_gpu_kernels.py --smoke             # a few of them
    python benchmarks/aot/aot_gpu_kernels.py --only H=128 --json out.json

No kernel may spill registers or take more shared memory than a block can have, and those with a product in 16 bits
must use the tensor cores, kernels by way of Mosaic the asynchronous ones (wgmma) and the copy engine.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from benchmarks.aot.gpu_kernel_cases import Case, cases
from benchmarks.support import ptx_report
from palladio.pallas_kernels.target import Target

MAX_SHARED_BYTES = 232_448  # of a block, on compute capability 9.0
LATENT_KERNELS = ("latent_decode", "latent_prefill")
MATMULS = ("grouped_matmul", "block_matmul")
ROUTES = ("route_experts", "plan_row_tiles")
KERNEL_NAMES = (
    *("paged_decode", "paged_decode_combine", "paged_prefill", "segment_attention"),
    *(*MATMULS, *LATENT_KERNELS, *ROUTES),
)
MOSAIC_PRODUCTS = ("paged_prefill_mosaic", *(f"{kernel}_mosaic" for kernel in MATMULS))
MOSAIC_ENTRY = re.compile(rf"\.entry ({'|'.join(MOSAIC_PRODUCTS)})_mosaic_gpu_kernel\(")
PRODUCTS = ("paged_decode", "paged_prefill", "segment_attention", *MATMULS, *LATENT_KERNELS, *MOSAIC_PRODUCTS)


def compile_case(mesh: Mesh, case: Case, dump: Path) -> Iterator[dict[str, Any]]:
    """A row for each kernel of the compiled program, with what is wrong in "wrong"."""
    for left in dump.iterdir():
        left.unlink()
    everywhere = NamedSharding(mesh, PartitionSpec())
    jitted, args = case.call(
        Target("gpu", "9.0"), lambda size, dtype: jax.ShapeDtypeStruct(size, dtype, sharding=everywhere)
    )
    program = aot_targets.compile_for(mesh, jitted, args)
    shared = ptx_report.shared_memory(dump)
    if not any(dump.glob("*.ptx")):
        raise RuntimeError("XLA dumped no PTX: this version wants other flags than main() gives it")
    for path in sorted(dump.glob("*.ptx")):
        text = path.read_text(encoding="utf-8")
        mosaic = MOSAIC_ENTRY.search(text)
        if mosaic is None and not any(f".entry {kernel}(" in text for kernel in KERNEL_NAMES):
            continue  # XLA's own
        for entry, figures in ptx_report.ptxas(path).items():
            kernel = mosaic[1] if mosaic else entry
            code = text[text.index(f".entry {entry}(") + 1 :].split(".entry", 1)[0]
            figures |= {
                "kernel": kernel,
                "tensor_core_instructions": code.count("wgmma.mma_async") + len(re.findall(r"\bmma\.sync", code)),
                "wgmma": code.count("wgmma.mma_async"),
                "float8_wgmma": len(re.findall(r"wgmma\.mma_async[\w.]*\.e4m3\.e4m3", code)),
                "async_copies": len(re.findall(r"cp\.async\.c[ag]\.|cp\.async\.bulk\.tensor", code)),
                "shared_bytes": ptx_report.mosaic_shared_memory(path) if mosaic else shared[kernel],
                "compile_seconds": program.compile_seconds,
            }
            yield figures | {"wrong": _check(figures, case.dtype)}


def _check(figures: dict[str, Any], dtype: DTypeLike) -> list[str]:
    wrong = []
    if figures["spilled_bytes"]:
        wrong.append(f"spills {figures['spilled_bytes']} bytes")
    if figures["shared_bytes"] > MAX_SHARED_BYTES:
        wrong.append(f"takes {figures['shared_bytes']} bytes of shared memory")
    if figures["kernel"] in PRODUCTS and dtype != jnp.float32 and not figures["tensor_core_instructions"]:
        wrong.append("does not use the tensor cores")
    if figures["kernel"].endswith("_mosaic") and not (figures["wgmma"] and figures["async_copies"]):
        wrong.append("does not use wgmma and the copy engine")
    if figures["kernel"] == "block_matmul_mosaic" and figures["float8_wgmma"] < figures["wgmma"]:
        wrong.append("does not multiply float8")
    return wrong


def compile_all(chosen: dict[str, Case], dump: Path) -> list[dict[str, Any]]:
    """Prints a line for each kernel; returns them."""
    mesh = aot_targets.TARGETS["h200"].mesh()
    print(f"for h200 (sm_90a); jax {jax.__version__}")
    print(f"{'case':<44} {'kernel':<22} regs  spills  shared KiB  wgmma  mma  cp.async  compile s  verdict")
    rows: list[dict[str, Any]] = []
    for name, case in chosen.items():
        for row in compile_case(mesh, case, dump):
            rows.append({"case": name, **row})
            mma = row["tensor_core_instructions"] - row["wgmma"]
            print(
                f"{name:<44} {row['kernel']:<22} {row['registers']:4}  {row['spilled_bytes']:6}  "
                f"{row['shared_bytes'] / 1024:10.1f}  {row['wgmma']:5}  {mma:3}  {row['async_copies']:8}  "
                f"{row['compile_seconds']:9.1f}  {'; '.join(row['wrong']) or 'ok'}",
                flush=True,
            )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few cases")
    parser.add_argument("--only", help="cases whose names contain this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="palladio-aot-") as folder:
        # XLA reads it when it is first used, which importing jax is not.
        flags = [os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}"]
        if jax.__version_info__ >= (0, 11):  # before, PTX is dumped anyway
            flags.append("--xla_dump_emitter_re=ptx|llvm-ir")
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()
        os.environ["MOSAIC_GPU_DUMP_TO"] = folder
        chosen = {name: case for name, case in cases(args.smoke).items() if (args.only or "") in name}
        rows = compile_all(chosen, Path(folder))
    if args.json:
        report = {
            "command": " ".join(["python benchmarks/aot/aot_gpu_kernels.py", *(argv or sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "jax": jax.__version__,
            "kernels": rows,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if not rows or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
