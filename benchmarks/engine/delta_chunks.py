"""How fast a prompt goes through one layer's gated delta rule: in chunks, and one token after the other.

    python benchmarks/engine/delta_chunks.py [--tokens 512 2048] [--heads 16] [--group 2] [--size 128]

Both in one run, in turns; tokens/s by the median, of a prompt that is alone. Also the largest difference of the two.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.gated_delta import DeltaRows, gated_delta
from palladio.pallas_kernels.gated_delta.reference import delta_rule

Arrays = tuple[jax.Array, ...]


def tokens(count: int, heads: int, group: int, size: int) -> Arrays:
    """q, k, v, decay and beta of random tokens."""
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((count, heads, size)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = rng.standard_normal((count, heads, group, size))
    decay = -0.05 * np.exp(rng.standard_normal((count, heads, group)))
    beta = rng.uniform(0, 1, decay.shape)
    return tuple(jnp.asarray(x, jnp.float32) for x in (q * size**-0.5, k, v, decay, beta))


@functools.partial(jax.jit, donate_argnums=1)
def in_chunks(given: Arrays, states: jax.Array, rows: DeltaRows) -> Arrays:
    q, k, v, decay, beta = given
    return gated_delta(q, k, v, decay, beta, states, rows)


@functools.partial(jax.jit, donate_argnums=1)
def one_by_one(given: Arrays, states: jax.Array) -> Arrays:
    q, k, v, decay, beta = given
    out, state = delta_rule(q, k, v, decay, beta, jnp.zeros_like(states[1]))
    return out, states.at[1].set(state)


def seconds(call: Callable[[Arrays, jax.Array], Arrays], given: Arrays, states: jax.Array) -> float:
    jax.block_until_ready(states)
    begin = time.perf_counter()
    jax.block_until_ready(call(given, states))
    return time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", type=int, default=16, help="of keys")
    parser.add_argument("--group", type=int, default=2, help="value heads of each")
    parser.add_argument("--size", type=int, default=128, help="of queries, keys and values")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    for count in args.tokens:
        given = tokens(count, args.heads, args.group, args.size)
        states = jnp.zeros((2, args.heads, args.group, args.size, args.size))
        start, one = jnp.array([0, count], jnp.int32), jnp.array([1], jnp.int32)
        rows = DeltaRows.of(start, jnp.array([count], jnp.int32), one, count, jnp.int32(0), "prefill")
        calls = functools.partial(in_chunks, rows=rows), one_by_one
        results = [call(given, states + 0)[0] for call in calls]  # compiled
        gap = float(jnp.abs(results[0] - results[1]).max())
        times = [[seconds(call, given, states + 0) for call in calls] for _ in range(args.rounds)]
        chunks, single = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{count} tokens: {count / chunks:,.0f} tokens/s in chunks, {count / single:,.0f} one by one "
            f"({single / chunks:.1f} times); largest difference {gap:.1e}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
