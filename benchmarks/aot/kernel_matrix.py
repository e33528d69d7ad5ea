"""Compiles every TPU kernel for every generation, without one: head sizes, cache dtypes, features.

    pip install 'jax[tpu]'
    python benchmarks/aot/kernel_matrix.py                     # all
    python benchmarks/aot/kernel_matrix.py --smoke             # one of each kernel, for two generations
    python benchmarks/aot/kernel_matrix.py --chips v6e 7x --json out.json
    python benchmarks/aot/kernel_matrix.py --chips v6e 7x --json out.json --keep    # what an interrupted run left out

Each row is one layer's cache write and attention in one program, which must compile (so vector, scalar and device
memory suffice, else the compiler refuses), update the whole cache in place, and copy nothing of its shape. Rows of
packed segments (encoders, towers) have no cache, and must have no array of tokens × tokens. Spill slots of kernels are
counted in the compiler's final schedule.
"""

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.support.hlo_facts import Facts
from benchmarks.support.tpu_dump import dump_to, read_schedule, spill_slots
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.kv_cache_update.tpu_decode import BLOCK
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    ScaledPages,
    kv_page_shape,
    ragged_paged_attention,
    scale_page_shape,
)
from palladio.pallas_kernels.segment_attention import Segments, segment_attention
from palladio.pallas_kernels.target import Target

CHIPS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
SMOKE_CHIPS = ("v5e", "7x")
NUM_PAGES, TABLE_WIDTH = 2000, 128  # of pages another number than of tokens: copies are known by their shape
KERNELS = ("paged_attention", "kv_cache_update")
SEGMENTS = 64  # of a step of packed texts or pictures


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The layer of a row. kind: kind of the step; sinks, window, soft_cap: as in AttentionOptions."""

    kind: Literal["decode", "prefill"]
    num_heads: int
    num_kv_heads: int
    head_size: int
    page_size: int = 64
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    def __str__(self) -> str:
        features = [
            f"window {self.window}" if self.window else "",
            f"cap {self.soft_cap:g}" if self.soft_cap else "",
            "sinks" if self.sinks else "",
        ]
        heads = f"{self.num_heads}/{self.num_kv_heads} of {self.head_size}, {self.kv_dtype}, pages of {self.page_size}"
        return ", ".join([f"{self.kind} {heads}", *filter(None, features)])


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentLayer:
    """Attention of packed segments.

    Attributes:
        model: what has such layers.
        num_tokens: tokens of a step.
        window: tokens on each side; None: the whole segment.
    """

    model: str
    num_heads: int
    head_size: int
    num_tokens: int
    dtype: str = "bfloat16"
    window: int | None = None

    def __str__(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        sizes = f"{self.num_heads} of {self.head_size}, {self.dtype}, {self.num_tokens} tokens"
        return f"segments {self.model} {sizes}{window}"


SEGMENT_CHIPS = ("v6e", "7x")
SEGMENT_LAYERS = (
    *(
        SegmentLayer(model, 16, head_size, num_tokens, window=window)
        for num_tokens in (512, 16_384)
        for model, head_size, window in (
            ("BERT-large", 64, None),
            ("ModernBERT-large", 64, 64),
            ("SigLIP", 72, None),
            ("heads of 80", 80, None),
        )
    ),
    SegmentLayer("BERT-large", 16, 64, 4096, dtype="float32"),
)

SMOKE = (
    SegmentLayer("SigLIP", 16, 72, 1024),
    Layer("decode", 14, 2, 64, page_size=16),
    Layer("prefill", 8, 2, 128, kv_dtype="int8", page_size=32, window=128, soft_cap=30.0, sinks=True),
)
LAYERS = tuple(
    layer
    for kind in ("decode", "prefill")
    for layer in (
        *(Layer(kind, *sizes) for sizes in ((14, 2, 64), (12, 4, 96), (32, 8, 128), (16, 1, 192), (8, 2, 256))),
        *(Layer(kind, n, 4, 128) for n in (4, 64)),
        *(Layer(kind, 32, 8, 128, kv_dtype=dtype) for dtype in ("float8_e4m3fn", "float8_e5m2", "int8")),
        *(Layer(kind, 32, heads, 128, kv_dtype="int8", page_size=size) for heads, size in ((8, 32), (2, 64), (1, 128))),
        *(Layer(kind, 32, 8, 128, page_size=size) for size in (16, 128, 256)),
        Layer(kind, 14, 2, 64, dtype="float32", kv_dtype="float32"),
        Layer(kind, 32, 8, 128, window=1024),
        Layer(kind, 8, 4, 256, soft_cap=50.0, window=4096),
        Layer(kind, 64, 8, 64, window=128, sinks=True),
    )
)


def compile_layer(layer: Layer, chip: str, schedules: Path) -> dict[str, Any]:
    """One row: its figures, and in "wrong" what is wrong.

    Args:
        schedules: where libtpu writes them; emptied afterwards.
    """
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())
    decode = layer.kind == "decode"
    N, K, H, S = layer.num_heads, layer.num_kv_heads, layer.head_size, layer.page_size
    T, B = (64, 64) if decode else (2048, 16)

    def array(*sizes: int, dtype: str = "int32") -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=whole)

    metadata = AttentionMetadata(array(B + 1), array(B), array(B, TABLE_WIDTH), array(), array(), layer.kind)
    writes = CacheWrites(array(T), array(T), max_runs=None if decode else T // S + 2 * B, one_each=decode)
    shape = kv_page_shape(NUM_PAGES, K, S, H)
    new = array(T, K, H, dtype=layer.dtype)
    sinks = array(N, dtype="float32") if layer.sinks else None

    def step(kv_pages: Any, q: Any, k: Any, v: Any, metadata: Any, writes: Any, sinks: Any) -> tuple[Any, Any]:
        scales = {"k_scale": 0.5, "v_scale": 2.0}
        kv_pages = kv_cache_update(kv_pages, k, v, writes, backend="tpu", target=target, **scales)
        out = ragged_paged_attention(
            q.reshape(T, N, H),
            kv_pages,
            metadata,
            scale=H**-0.5,
            sliding_window=layer.window,
            soft_cap=layer.soft_cap,
            sinks=sinks,
            backend="tpu",
            target=target,
            **scales,
        )
        return kv_pages, out.reshape(T, N * H)  # rows as the products around attention give and take them

    row: dict[str, Any] = {"chip": chip, "layer": str(layer)}
    pages, cache_bytes = array(*shape, dtype=layer.kv_dtype), math.prod(shape) * jnp.dtype(layer.kv_dtype).itemsize
    if layer.kv_dtype == "int8":
        beside = scale_page_shape(NUM_PAGES, K, S)
        pages, cache_bytes = ScaledPages(pages, array(*beside, dtype="float32")), cache_bytes + 4 * math.prod(beside)
    args = (pages, array(T, N * H, dtype=layer.dtype), new, new, metadata, writes, sinks)
    try:
        program = aot_targets.compile_for(mesh, jax.jit(step, donate_argnums=0), args)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
        return row | {"wrong": [f"refused: {type(refusal).__name__}: {str(refusal).strip()[:400]}"]}
    copies = Facts.of(program.hlo, shape, ()).cache_copies
    if layer.kv_dtype == "int8":
        copies += Facts.of(program.hlo, beside, ()).cache_copies
    wrong = [f"copies the cache {copies} times"] if copies else []
    if program.alias_bytes != cache_bytes:
        wrong.append(f"updates {program.alias_bytes:,} bytes in place, the cache has {cache_bytes:,}")
    if decode and not wrong:
        row["row_bundles"] = row_bundles(schedules, K)
    return row | _figures(program, schedules, KERNELS, wrong)


def _figures(
    program: aot_targets.Compiled, schedules: Path, kernels: Sequence[str], wrong: Sequence[str]
) -> dict[str, Any]:
    """Return what a program took, and empty the folder of its schedules.

    Args:
        kernels: names of the kernels that have schedules.
        wrong: what is wrong with it so far.
    """
    spills = spill_slots(schedules, *kernels)
    for file in schedules.iterdir():
        file.unlink()
    return {
        "compile_seconds": program.compile_seconds,
        "compile_cpu_seconds": program.compile_cpu_seconds,
        "temp_bytes": program.temp_bytes,
        "spills": spills,
        "wrong": [*wrong, *([] if spills else ["the compiler wrote no schedule of a kernel"])],
    }


def compile_segments(layer: SegmentLayer, chip: str, schedules: Path) -> dict[str, Any]:
    """Compile one row of packed segments; the same figures as `compile_layer`."""
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())
    T, N, H = layer.num_tokens, layer.num_heads, layer.head_size

    def step(qkv: Any, ends: Any) -> Any:
        q, k, v = (qkv[:, part] for part in range(3))
        segments = Segments.of_ends(ends, T)
        options: dict[str, Any] = {"window": layer.window, "backend": "tpu", "target": target}
        return segment_attention(q, k, v, segments, scale=H**-0.5, **options).reshape(T, N * H)

    args = (
        jax.ShapeDtypeStruct((T, 3, N, H), jnp.dtype(layer.dtype), sharding=whole),
        jax.ShapeDtypeStruct((SEGMENTS,), jnp.int32, sharding=whole),
    )
    row: dict[str, Any] = {"chip": chip, "layer": str(layer)}
    try:
        program = aot_targets.compile_for(mesh, jax.jit(step), args)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
        return row | {"wrong": [f"refused: {type(refusal).__name__}: {str(refusal).strip()[:400]}"]}
    wrong = [f"an array of {T} × {T}"] if f"[{T},{T}]" in program.hlo or f",{T},{T}]" in program.hlo else []
    return row | _figures(program, schedules, ["segment_attention"], wrong)


def row_bundles(schedules: Path, num_heads: int) -> float:
    """Return the bundles of a decode step's cache write, a row, without waiting for memory. A block of rows runs all of
    the kernel's code once, and its loop that stores (over heads) and those over rows as often as they iterate."""
    total = 0
    for segment in read_schedule(schedules, "kv_cache_update_rows"):
        turns = (num_heads if segment.units["VSTORE"] else BLOCK) if segment.depth == 2 else 1
        total += segment.bundles * turns if segment.depth else 0
    return total / BLOCK


def compile_matrix(
    chips: Sequence[str], layers: Sequence[Layer | SegmentLayer], kept: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """A row for each, and none compiled that is in `kept`."""
    known = {(row["chip"], row["layer"]): row for row in kept}
    with tempfile.TemporaryDirectory() as folder:
        dump_to(Path(folder))
        for chip in chips:
            for layer in layers:
                if (chip, str(layer)) in known:
                    yield known[chip, str(layer)]
                elif isinstance(layer, Layer):
                    yield compile_layer(layer, chip, Path(folder))
                elif chip in SEGMENT_CHIPS:
                    yield compile_segments(layer, chip, Path(folder))


def line_of(row: dict[str, Any]) -> str:
    """Format a row of the printed table."""
    if row["wrong"]:
        return f"{row['chip']:<4} {row['layer']:<72} {'; '.join(row['wrong'])}"
    figures = (
        f"{row['compile_seconds']:6.1f} s {row['temp_bytes'] / 2**20:6.1f} MiB {sum(row['spills'].values()):6} spills"
    )
    return f"{row['chip']:<4} {row['layer']:<72} {figures} ok"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chips", choices=CHIPS, nargs="+")
    parser.add_argument("--smoke", action="store_true", help="two layers, two generations")
    parser.add_argument("--only", default="", help="layers whose description holds this text")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="add to the --json file; what it has is not compiled again")
    args = parser.parse_args(argv)
    chips = args.chips or (SMOKE_CHIPS if args.smoke else tuple(CHIPS))
    all_layers: tuple[Layer | SegmentLayer, ...] = SMOKE if args.smoke else (*LAYERS, *SEGMENT_LAYERS)
    layers = [layer for layer in all_layers if args.only in str(layer)]
    kept = json.loads(args.json.read_text(encoding="utf-8"))["rows"] if args.keep and args.json.exists() else []
    kept = [row for row in kept if not row["wrong"]]
    rows = [row for row in kept if row["chip"] not in chips or row["layer"] not in map(str, layers)]
    num_others = len(rows)
    print(f"jax {jax.__version__}")
    for row in compile_matrix(chips, layers, kept):
        print(line_of(row), flush=True)
        rows.append(row)
        report = {
            "command": " ".join(["python benchmarks/aot/kernel_matrix.py", *(argv or sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "jax": jax.__version__,
            "rows": rows,
        }
        if args.json:  # after each row: what was compiled is kept if the rest is not
            args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if len(rows) == num_others:
        print(f"no layer's description holds {args.only!r}: nothing was compiled", file=sys.stderr)
    return 1 if len(rows) == num_others or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
