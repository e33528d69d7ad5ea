"""The kernels on this machine's GPU: right first, then how fast, beside the device's copy bandwidth and beside torch.

    python benchmarks/gpu/kernels.py --out benchmarks/results/kernels.json
    JAX_PLATFORMS=cpu python benchmarks/gpu/kernels.py --tiny       # tries the script itself; Triton is interpreted

Every output is compared with that of the portable backend before it is timed. A time is that of one layer, within one
compiled program of several which depend on each other and have caches of their own: as in a model, and so that neither
dispatch nor the device's own cache flatters it. It is the median over rounds; each round waits for the device once.
torch, where it is installed, runs in a process of its own.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.gpu_numerics import Figures, attention_numerics
from benchmarks.gpu.kernel_workloads import AttentionWorkload, ExpertsWorkload, attention_workloads, experts_workloads
from benchmarks.support.report import report, write
from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    KVPages,
    ScaledPages,
    kv_page_shape,
    ragged_paged_attention,
    scale_page_shape,
)
from palladio.pallas_kernels.target import Target

TOLERANCE = 0.03  # largest difference from the portable backend, of outputs of about 1 in bfloat16


def median_seconds(call: Callable[[], Any], tiny: bool) -> float:
    """Return the median over rounds of enough calls to hide the dispatch, for a call that returns arrays."""
    jax.block_until_ready(call())
    rounds, calls = (1, 1) if tiny else (9, 10)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            last = call()
        jax.block_until_ready(last)
        seconds.append((time.perf_counter() - start) / calls)
    return statistics.median(seconds)


def copy_bandwidth(tiny: bool) -> float:
    """Bytes a second that a copy reads and writes."""
    source = jnp.ones((2**16 if tiny else 2**30,), jnp.bfloat16)
    negate = jax.jit(lambda x: -x)
    return 2 * source.nbytes / median_seconds(lambda: negate(source), tiny)


def make_step(workload: AttentionWorkload) -> tuple[jax.Array, list[KVPages], AttentionMetadata]:
    """Make queries, the caches of the layers, and metadata with random pages in random order."""
    rng = np.random.default_rng(0)
    totals = np.array([before + new for before, new in workload.lengths], np.int32)
    counts = -(-totals // workload.page_size)
    order = 1 + rng.permutation(int(counts.sum())).astype(np.int32)
    table = np.zeros((len(totals), int(counts.max())), np.int32)
    for row, (count, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
        table[row, :count] = order[end - count : end]
    starts = np.cumsum([0, *(new for _, new in workload.lengths)]).astype(np.int32)
    decodes = next((row for row, (_, new) in enumerate(workload.lengths) if new > 1), len(totals))
    shape = kv_page_shape(len(order) + 1, workload.num_kv_heads, workload.page_size, workload.head_size)

    @functools.partial(jax.jit, static_argnums=1)
    def fill(key: jax.Array, dtype: str) -> KVPages:
        values = jax.random.normal(key, shape, jnp.bfloat16)
        if dtype != "int8":
            return values.astype(dtype)
        beside = scale_page_shape(shape[0], workload.num_kv_heads, workload.page_size)
        scales = jax.random.uniform(key, beside, minval=0.8 / 40, maxval=1.2 / 40)
        return ScaledPages(jnp.clip(jnp.round(values * 40), -127, 127).astype(dtype), scales)

    keys = jax.random.split(jax.random.key(0), workload.num_layers + 1)
    q = jax.random.normal(keys[0], (int(starts[-1]), workload.num_heads, workload.head_size), jnp.bfloat16)
    caches = [fill(key, workload.kv_dtype) for key in keys[1:]]
    metadata = AttentionMetadata(
        jnp.asarray(starts),
        jnp.asarray(totals),
        jnp.asarray(table),
        jnp.int32(len(totals)),
        jnp.int32(decodes),
        "decode" if workload.decodes else "prefill",
    )
    return q, caches, metadata


def time_attention(workload: AttentionWorkload, target: Target, backend: str, tiny: bool, bandwidth: float) -> Figures:
    """Error and speed of a layer's attention."""
    q, caches, metadata = make_step(workload)

    @functools.partial(jax.jit, static_argnames="backend")
    def layers(q: jax.Array, caches: Sequence[KVPages], metadata: AttentionMetadata, *, backend: str) -> jax.Array:
        for kv_pages in caches:
            q = ragged_paged_attention(
                q,
                kv_pages,
                metadata,
                scale=workload.head_size**-0.5,
                backend=backend,
                target=target,
            )
        return q

    first = caches[:1]
    ours = np.asarray(layers(q, first, metadata, backend=backend), np.float32)
    error = float(np.abs(ours - np.asarray(layers(q, first, metadata, backend="xla"), np.float32)).max())
    seconds = median_seconds(lambda: layers(q, caches, metadata, backend=backend), tiny) / len(caches)
    rate = workload.cache_bytes(caches[0].dtype.itemsize) / seconds
    return {
        "workload": workload.name,
        "max error": error,
        "ok": error <= TOLERANCE,
        "µs": 1e6 * seconds,
        "TFLOP/s": workload.flops / seconds / 1e12,
        "cache GB/s": rate / 1e9,
        "share of copy bandwidth": rate / bandwidth,
    }


def time_experts(workload: ExpertsWorkload, target: Target, tiny: bool, bandwidth: float) -> Figures:
    """Measure error and speed of one grouped product, in comparison with XLA's ragged_dot."""
    rng = np.random.default_rng(0)
    sizes = np.bincount(rng.integers(workload.num_experts, size=workload.num_rows), minlength=workload.num_experts)
    group_sizes = jnp.asarray(sizes, jnp.int32)
    keys = jax.random.split(jax.random.key(0), 2)
    rows = jax.random.normal(keys[0], (workload.num_rows, workload.inner), jnp.bfloat16)
    shape = (workload.num_experts, workload.inner, workload.columns)
    matrices = jax.random.normal(keys[1], shape, jnp.bfloat16) / workload.inner**0.5
    outputs, seconds = {}, {}
    for backend in ("auto", "xla"):
        call = jax.jit(functools.partial(grouped_matmul, backend=backend, target=target))
        outputs[backend] = np.asarray(call(rows, matrices, group_sizes), np.float32)
        seconds[backend] = median_seconds(functools.partial(call, rows, matrices, group_sizes), tiny)
    error = float(np.abs(outputs["auto"] - outputs["xla"]).max())
    return {
        "workload": workload.name,
        "max error": error,
        "ok": error <= TOLERANCE,
        "µs": 1e6 * seconds["auto"],
        "µs, ragged_dot": 1e6 * seconds["xla"],
        "TFLOP/s": workload.flops / seconds["auto"] / 1e12,
        "share of copy bandwidth": workload.matrix_bytes / seconds["auto"] / bandwidth,
    }


def torch_figures(tiny: bool, seconds: float) -> Figures:
    """Run kernels_torch.py and return its figures; a failure is reported, not fatal."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "torch.json"
        script = Path(__file__).with_name("kernels_torch.py")
        command = [sys.executable, str(script), "--out", str(out), *["--tiny"] * tiny]
        error = {}
        try:
            if status := subprocess.run(command, check=False, timeout=seconds).returncode:
                error = {"error": f"exit status {status}"}
        except subprocess.TimeoutExpired:
            error = {"error": f"took more than {seconds:g} s"}
        found: Figures = json.loads(out.read_text()) if out.exists() else {}
        return found | error


def measure(target: Target, backend: str, tiny: bool, bandwidth: float) -> Iterator[Figures]:
    """Each workload's figures, printed as they come."""
    for attention in attention_workloads(tiny):
        yield time_attention(attention, target, backend, tiny, bandwidth)
        if not attention.decodes and backend != "gpu_mosaic":
            try:
                figures = time_attention(attention, target, "gpu_mosaic", tiny, bandwidth)
            except NotImplementedError as refusal:
                print(f"{attention.name}: {refusal}", file=sys.stderr)
                continue
            yield figures | {"workload": f"{attention.name} (gpu_mosaic)"}
    for experts in experts_workloads(tiny):
        yield time_experts(experts, target, tiny, bandwidth)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--attention-backend", default="gpu_triton")
    parser.add_argument("--no-torch", action="store_true", help="ours alone")
    parser.add_argument("--torch-seconds", type=float, default=300.0, help="that torch may take")
    parser.add_argument("--out", type=Path, help="file for the JSON report")
    args = parser.parse_args(argv)
    # First: jax takes most of the device's memory as soon as it finds the device.
    beside = {} if args.no_torch else torch_figures(args.tiny, args.torch_seconds)
    device = jax.devices()[0]
    target = Target.of(device)
    if target.platform != "gpu":
        if not args.tiny:
            parser.error(f"jax finds no GPU here, only {device.device_kind}; --tiny tries the script without one")
        target = Target("gpu", "9.0", interpret="plain")
    numerics = attention_numerics(args.tiny, target, args.attention_backend)
    bandwidth = copy_bandwidth(args.tiny)
    rows: list[Figures] = []
    result = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": device.device_kind,
        "jax": jax.__version__,
        "copy GB/s": bandwidth / 1e9,
        "numerics": numerics,
        "torch": beside,
        "workloads": rows,
    }
    for row in measure(target, args.attention_backend, args.tiny, bandwidth):
        rows.append(row)
        write(result, args.out)
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}, flush=True)
    report("gpu/kernels.py", argv, result, args.out)
    return 0 if numerics["ok"] and all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
