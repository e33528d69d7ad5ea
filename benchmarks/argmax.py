"""The sampler's argmax over a vocabulary, with its test for NaN, against plain jnp operations, in one run.

    python benchmarks/argmax.py [--rows 1 32 64] [--vocab 32000 50257 151936] [--rounds 25] [--json out.json]

`argmax` is a greedy step: the ids, and whether the row is finite. `drawn` is the last part of a sampled step: the ids
of values that the program itself has computed (here one logarithm each). Both ways take turns; times are medians in
milliseconds, and the ratio is before ÷ after. On a TPU or GPU the two are the same operations, except that `drawn`
keeps the values apart from the argmax on a TPU.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from server_process import provenance

from palladio.runtime.execution.row_argmax import row_argmax, row_argmax_of_computed, rows_are_finite

Way = Callable[[jax.Array], Any]

WAYS: dict[str, tuple[Way, Way]] = {
    "argmax": (
        lambda x: (jnp.argmax(x, axis=-1), jnp.isfinite(x.max(axis=-1))),
        lambda x: (row_argmax(x), rows_are_finite(x)),
    ),
    "drawn": (
        lambda x: lax.top_k(jnp.log(x), 1)[1][:, 0],
        lambda x: row_argmax_of_computed(jnp.log(x)),
    ),
}


def measure(rows: int, vocab_size: int, rounds: int) -> list[dict[str, Any]]:
    values = jnp.asarray(np.random.default_rng(0).uniform(1e-3, 1, (rows, vocab_size)).astype(np.float32))
    programs = {name: tuple(jax.jit(way) for way in ways) for name, ways in WAYS.items()}
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in WAYS}
    for number in range(rounds + 1):
        for name, ways in programs.items():
            for way, taken in zip(ways, seconds[name], strict=True):
                start = time.perf_counter()
                jax.block_until_ready(way(values))
                if number:  # the first one compiles
                    taken.append(time.perf_counter() - start)
    results = []
    for name, both in seconds.items():
        before, after = (1e3 * statistics.median(taken) for taken in both)
        figures = {"before_ms": round(before, 3), "after_ms": round(after, 3), "ratio": round(before / after, 2)}
        results.append({"what": name, "rows": rows, "vocab": vocab_size} | figures)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 50_257, 151_936])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    print(f"{'what':8} {'rows':>5} {'vocab':>7} {'before ms':>10} {'after ms':>10} {'ratio':>7}")
    for vocab_size in args.vocab:
        for rows in args.rows:
            for row in measure(rows, vocab_size, args.rounds):
                results.append(row)
                print(
                    f"{row['what']:8} {rows:5} {vocab_size:7} {row['before_ms']:10.2f} {row['after_ms']:10.2f} "
                    f"{row['ratio']:7.2f}",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(provenance() | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
