"""Our C++ for CPUs beside XLA's own operations, one kernel at a time: milliseconds of a call, medians, ratios.

    python benchmarks/cpu/cpu_kernels.py [--cores 0,1] [--rounds 15] [--only products] [--rows 1 20 256] [--json o.json]

Products have the shapes of a 0.5B model's largest matrices, several of each in turn, so that none stays in a cache.
Each has its milliseconds, the bytes of the matrix that it reads a second as a share of what a plain read of memory
gets on the same cores, and its multiplications and additions a second. Attention and the cache write have the heads of
that model and pages of 16 tokens. All kernels take turns in each round, so that whatever else runs slows all alike.
"""

import argparse
import ctypes
import functools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.support.report import report
from palladio.pallas_kernels.cpu_native import load
from palladio.pallas_kernels.cpu_native.calls import rows_times_bfloat16, rows_times_int8
from palladio.pallas_kernels.cpu_native.forms import Form, forms_of
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, byte_matmul, narrow_matmul
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata, ragged_paged_attention
from palladio.pallas_kernels.target import Target

SHAPES = ((896, 9728), (4864, 896))  # inputs and outputs
_MATRIX_BYTES = 36 << 20  # of the int8 matrices of a shape together, more than caches have
_READ_BYTES = 400 << 20
_BITS: tuple[Literal[8, 16], ...] = (16, 8)  # of rows
# Of the library, as far as this CPU can run them.
_FORMS: dict[Form, str] = {
    "avx512_bf16": "native by AVX-512 BF16",
    "avx512_vnni": "native, widened by AVX-512",
    "avx2": "native with AVX2",
}
HEADS, KV_HEADS, HEAD_SIZE, PAGE_SIZE = 14, 2, 64, 16
ROWS = (1, 4, 8, 20, 64, 256)
# Requests, keys of each, and how many of them the step computes.
STEPS = (
    *((1, 3000, 1), (8, 300, 1), (8, 3000, 1), (64, 300, 1), (64, 3000, 1)),
    *((1, 128, 128), (1, 2000, 2000), (1, 4000, 512), (16, 512, 64), (8, 64, 64)),
)
WRITES = (1, 16, 512)  # tokens
Call = Callable[[], Any]


def products(num_rows: int, inputs: int, outputs: int, matrices: int) -> Iterator[tuple[str, int, Call]]:
    """Yield each kernel with all matrices: its name, the bytes of one matrix, and the call."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((num_rows, inputs), np.float32))
    numbers = [rng.standard_normal((outputs, inputs), np.float32) for _ in range(matrices)]
    wide = [jnp.asarray(each.T) for each in numbers]
    narrow = [jnp.asarray(each, jnp.bfloat16) for each in numbers]
    whole = [jnp.asarray(np.rint(30 * each).clip(-127, 127), jnp.int8) for each in numbers]
    scales = jnp.ones(outputs, jnp.float32)
    xla, native = NarrowProducts(), NarrowProducts(native_rows=num_rows, native_int8_rows=num_rows)

    def each_of(multiply: Callable[[jax.Array, jax.Array], jax.Array], matrices: list[jax.Array]) -> tuple[int, Call]:
        run = jax.jit(lambda x, matrices: [multiply(x, matrix) for matrix in matrices])
        return matrices[0].nbytes, lambda: run(x, matrices)

    yield "float32", *each_of(jnp.matmul, wide)
    yield "bfloat16, XLA", *each_of(lambda x, w: narrow_matmul(x, w, xla), narrow)
    yield "bfloat16, native", *each_of(lambda x, w: narrow_matmul(x, w, native), narrow)
    able = forms_of(Path("/proc/cpuinfo").read_text())
    for form, name in _FORMS.items():
        if form in able:
            yield f"bfloat16, {name}", *each_of(functools.partial(rows_times_bfloat16, form=form), narrow)
    for bits in _BITS:
        name, product = f"int8 and rows of {bits} bits", functools.partial(byte_matmul, scales=scales, bits=bits)
        avx2 = functools.partial(rows_times_int8, scales=scales, bits=bits, form="avx2")
        yield f"{name}, XLA", *each_of(functools.partial(product, products=xla), whole)
        yield f"{name}, native", *each_of(functools.partial(product, products=native), whole)
        yield f"{name}, native with AVX2", *each_of(avx2, whole)


def bytes_per_second(num_cores: int) -> float:
    """Measure a plain read of memory: the C library looks for a byte that is not there, on each core in its own
    part."""
    text = np.full(_READ_BYTES, 2, np.uint8)
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    part, times = _READ_BYTES // num_cores, []
    for _ in range(5):
        threads = [
            threading.Thread(target=memchr, args=(text.ctypes.data + core * part, 1, part)) for core in range(num_cores)
        ]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times.append(time.perf_counter() - start)
    return _READ_BYTES / min(times)


def of_products(num_rows: int, inputs: int, outputs: int, rounds: int, read: float) -> dict[str, Any]:
    """Measure each kernel with one matrix."""
    matrices = max(2, _MATRIX_BYTES // (inputs * outputs))
    kernels = list(products(num_rows, inputs, outputs, matrices))
    found = medians([(name, call) for name, _, call in kernels], rounds)
    result = {}
    for name, num_bytes, _ in kernels:
        seconds = found[name] / matrices / 1e3
        result[name] = {
            "ms": round(1e3 * seconds, 4),
            "share of memory's speed": round(num_bytes / seconds / read, 2),
            "GFLOP/s": round(2 * num_rows * inputs * outputs / seconds / 1e9),
        }
        of_xla = result.get(name.partition(", native")[0] + ", XLA")
        if of_xla is not None and "native" in name:
            result[name]["XLA / native"] = round(of_xla["ms"] / result[name]["ms"], 2)
    return result


def attentions(num_requests: int, num_keys: int, num_new: int, target: Target) -> Iterator[tuple[str, Call]]:
    """Yield the attention of one layer of a step, by each backend."""
    rng, width, num_tokens = np.random.default_rng(0), -(-num_keys // PAGE_SIZE), num_requests * num_new
    num_pages = num_requests * width + 1
    pages = jnp.asarray(rng.standard_normal((num_pages, KV_HEADS, PAGE_SIZE, 2 * HEAD_SIZE), np.float32))
    q = jnp.asarray(rng.standard_normal((num_tokens, HEADS, HEAD_SIZE), np.float32))
    table = (1 + rng.permutation(num_pages - 1)).reshape(num_requests, width).astype(np.int32)
    metadata = AttentionMetadata(
        jnp.arange(0, num_tokens + 1, num_new, dtype=jnp.int32),
        jnp.full(num_requests, num_keys, jnp.int32),
        jnp.asarray(table),
        jnp.int32(num_requests),
        jnp.int32(num_requests if num_new == 1 else 0),
        "decode" if num_new == 1 else "prefill",
    )
    for backend in ("xla", "cpu_native"):
        attend = jax.jit(
            lambda q, pages, metadata, backend=backend: ragged_paged_attention(
                q, pages, metadata, scale=HEAD_SIZE**-0.5, backend=backend, target=target
            )
        )
        yield backend, lambda attend=attend: attend(q, pages, metadata)  # type: ignore[misc]


def cache_writes(num_tokens: int, target: Target) -> Iterator[tuple[str, Call]]:
    """Yield the cache write of one layer of a step into a donated pool of 4,096 pages, by each backend."""
    rng = np.random.default_rng(0)
    cells = rng.permutation(4095 * PAGE_SIZE)[:num_tokens].astype(np.int32) + PAGE_SIZE
    writes = CacheWrites(jnp.asarray(cells // PAGE_SIZE), jnp.asarray(cells % PAGE_SIZE))
    k, v = (jnp.asarray(rng.standard_normal((num_tokens, KV_HEADS, HEAD_SIZE), np.float32)) for _ in range(2))

    def call_of(backend: str) -> Call:
        update = functools.partial(kv_cache_update, backend=backend, target=target)
        write = jax.jit(update, donate_argnums=0)
        kept = [jnp.zeros((4096, KV_HEADS, PAGE_SIZE, 2 * HEAD_SIZE))]

        def call() -> Any:
            kept[0] = write(kept[0], k, v, writes)
            return kept[0]

        return call

    for backend in ("xla", "cpu_native"):
        yield backend, call_of(backend)


def medians(calls: Sequence[tuple[str, Call]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, all in alternation."""
    times: dict[str, list[float]] = {name: [] for name, _ in calls}
    for number in range(rounds + 1):  # the first compiles
        for name, call in calls:
            start = time.perf_counter()
            jax.block_until_ready(call())
            if number:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", help="numbers of cores to run on, such as 0,1; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=("products", "attention"))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of products")
    parser.add_argument("--json", type=Path, help="file for the report")
    args = parser.parse_args(argv)
    if args.cores:  # before XLA makes its threads
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    load(None)
    for form in set(_FORMS) & set(forms_of(Path("/proc/cpuinfo").read_text())):
        load(None, form=form)
    target = Target("cpu", Target.of(jax.devices("cpu")[0]).kind, is_native=True)
    read = bytes_per_second(len(os.sched_getaffinity(0)))
    result: dict[str, Any] = {"kind": target.kind, "memory, GB/s": round(read / 1e9, 1)}
    result |= {"products": {}, "attention": {}, "cache_write": {}}
    for inputs, outputs in SHAPES if args.only != "attention" else ():
        for num_rows in args.rows:
            name = f"[{num_rows}, {inputs}] x [{inputs}, {outputs}]"
            result["products"][name] = of_products(num_rows, inputs, outputs, args.rounds, read)
    for num_requests, num_keys, num_new in STEPS if args.only != "products" else ():
        found = medians(list(attentions(num_requests, num_keys, num_new, target)), args.rounds)
        name = f"{num_requests} x {num_keys} keys, {num_new} new"
        result["attention"][name] = found | {"ratio": found["xla"] / found["cpu_native"]}
    for num_tokens in WRITES if args.only != "products" else ():
        found = medians(list(cache_writes(num_tokens, target)), args.rounds)
        result["cache_write"][f"{num_tokens} tokens"] = found | {"ratio": found["xla"] / found["cpu_native"]}
    report("cpu/cpu_kernels.py", argv, result, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
