"""Parts of the sampler that read a whole vocabulary, against plain JAX, in one run.

    python benchmarks/engine/sampler.py [--rows 1 32 64] [--vocab 32000 50257 151936] [--rounds 15] [--json out.json]

`argmax` is a greedy step: the ids, and whether the row is finite. `drawn` is the last part of a sampled step: the ids
of values that the program itself has computed (here one logarithm each). `noise` is that of a sampled step. Both ways
take turns; times are medians in milliseconds, and the ratio is before ÷ after. On a TPU or GPU the first two are the
same operations, except that `drawn` keeps the values apart from the argmax on a TPU.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.support.server_process import provenance
from palladio.pallas_kernels.row_argmax import row_argmax
from palladio.runtime.execution.sampling.draws import gumbel_noise

Way = Callable[[jax.Array], Any]

WAYS: dict[str, tuple[Way, Way]] = {
    "argmax": (
        lambda x: (jnp.argmax(x, axis=-1), jnp.isfinite(x.max(axis=-1))),
        row_argmax,
    ),
    "drawn": (
        lambda x: lax.top_k(jnp.log(x), 1)[1][:, 0],
        lambda x: row_argmax(jnp.log(x), is_computed=True)[0],
    ),
    "noise": (lambda x: _gumbel(_jax_bits(x)), lambda x: gumbel_noise(*_seeds(x), x.shape[1])),
}


def _seeds(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A seed and a position for each row, which the compiler does not know."""
    words = lax.bitcast_convert_type(values[:, :2], jnp.uint32)
    return words, words[:, 0].astype(jnp.int32)


def _jax_bits(values: jax.Array) -> jax.Array:
    def of_row(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed[::-1], impl="threefry2x32")
        return jax.random.bits(jax.random.fold_in(key, position), (values.shape[1],), jnp.uint32)

    return jax.vmap(of_row)(*_seeds(values))


def _gumbel(bits: jax.Array) -> jax.Array:
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log(-jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24)))


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
        results.append(
            {"what": name, "rows": rows, "vocab": vocab_size, "before_ms": round(before, 3),
             "after_ms": round(after, 3), "ratio": round(before / after, 2)}
        )  # fmt: skip
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
