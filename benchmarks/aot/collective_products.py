"""An MLP over the devices of a TPU slice, its sums made in several ways, as the compiler orders them.

    PYTHONPATH=.venv-aot python benchmarks/aot/collective_products.py --target tpu-v5e --tokens 2048

Sizes of Llama-3.1-8B on four devices. For each way: XLA's estimate of what is computed, without collectives, and the
order of products (with their thousands of cycles) and collectives. "-start" and "-done" with a product between them
run beside it; what has neither is waited for.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.aot import aot_targets
from benchmarks.aot.aot_targets import TARGETS, Compiled
from benchmarks.support.hlo_facts import entry_operations

DEVICES, HIDDEN, INNER = 4, 4096, 14336
AXIS = "tensor"
OPTIONS = {
    "none": {},
    "async": {
        "xla_enable_async_all_reduce": "true",
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
        "xla_tpu_overlap_compute_collective_tc": "true",
    },
    "collective-matmul": {
        "xla_tpu_all_gather_collective_matmul_mode": "post_spmd_conservative",
        "xla_tpu_reduce_scatter_collective_matmul_mode": "post_spmd_conservative",
    },
}
_COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute)(-start|-done)?\(")
WholeMlp = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())))


def _normed(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-5)
    normed: jax.Array = scaled.astype(x.dtype)
    return normed


def _inner(x: jax.Array, gate_up: jax.Array) -> jax.Array:
    both = _product(x, gate_up)
    inner: jax.Array = jax.nn.silu(both[:, 0]) * both[:, 1]
    return inner


def all_reduce(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """Compute as the engine does: every device has all tokens."""
    total: jax.Array = lax.psum(_product(_inner(_normed(x), gate_up), down), AXIS)
    return x + total


def two_pieces(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """Compute with half of the tokens at a time, so that one half's sum could run during the other's products."""
    return jnp.concatenate([all_reduce(piece, gate_up, down) for piece in jnp.split(x, 2)])


def scattered(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """Each device has the residuals of a quarter of the tokens."""
    whole = lax.all_gather(_normed(x), AXIS, axis=0, tiled=True)
    total: jax.Array = lax.psum_scatter(_product(_inner(whole, gate_up), down), AXIS, scatter_dimension=0, tiled=True)
    return x + total


def ring(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """The same; pieces of tokens, and then of sums, go round while the next one is multiplied."""
    onwards = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    piece, inner = _normed(x), []
    for step in range(DEVICES):
        following = lax.ppermute(piece, AXIS, onwards) if step + 1 < DEVICES else piece
        inner.append(_inner(piece, gate_up))  # of the device `step` places before this one
        piece = following
    total = _product(inner[1], down)
    for step in range(1, DEVICES):
        total = lax.ppermute(total, AXIS, onwards) + _product(inner[(1 + step) % DEVICES], down)
    return x + total


WAYS: dict[str, tuple[WholeMlp, bool]] = {  # and whether residuals are divided by tokens
    "all_reduce": (all_reduce, False),
    "two_pieces": (two_pieces, False),
    "scattered": (scattered, True),
    "ring": (ring, True),
}


def compile_way(way: str, options: dict[str, str], mesh: Mesh, num_tokens: int) -> Compiled:
    """One MLP with its norm and residual sum."""
    function, is_divided = WAYS[way]
    tokens = PartitionSpec(AXIS if is_divided else None)
    specs = tokens, PartitionSpec(None, None, AXIS), PartitionSpec(AXIS)
    shapes = (num_tokens, HIDDEN), (HIDDEN, 2, INNER), (INNER, HIDDEN)
    arguments = tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    )
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)
    return aot_targets.compile_for(mesh, jax.jit(mapped), arguments, options)


def describe(hlo: str) -> tuple[int, str]:
    """Estimated cycles of what is computed, and the order of products and collectives."""
    operations, order = list(entry_operations(hlo)), []
    for operation in operations:
        if (match := _COLLECTIVE.search(operation.line)) is not None:
            order.append(match[1] + (match[2] or ""))
        elif operation.is_product:
            order.append(f"[{operation.cycles // 1000}]")
    return sum(operation.cycles for operation in operations), " ".join(order)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=[name for name in TARGETS if name.startswith("tpu")], default="tpu-v5e")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--way", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--options", choices=OPTIONS, nargs="+", default=["none"])
    parser.add_argument("--operation-mib", type=int, help="vector memory of an operation of XLA's")
    args = parser.parse_args(argv)
    more = {"xla_tpu_scoped_vmem_limit_kib": str(args.operation_mib * 1024)} if args.operation_mib else {}
    mesh = Mesh(TARGETS[args.target].mesh(DEVICES).devices.reshape(DEVICES), (AXIS,))
    for way in args.way:
        for name in args.options:
            cycles, order = describe(compile_way(way, OPTIONS[name] | more, mesh, args.tokens).hlo)
            print(f"{way}, options {name}: {cycles} cycles\n    {order}", flush=True)


if __name__ == "__main__":
    main()
