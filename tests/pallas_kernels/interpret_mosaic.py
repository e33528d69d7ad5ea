"""Interprets the kernels for Hopper GPUs on cases of the suites, and prints the largest error of each as JSON.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/pallas_kernels/interpret_mosaic.py plain mixed …

A process of its own: warpgroups wait for each other, each on a thread of XLA's pool, whose size is fixed at its start.
With --fault first, a fault is planted in the kernel.
"""

import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.block_matmul import block_matmul
from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.ragged_paged_attention.gpu import mosaic_prefill, mosaic_tile
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, attend, make

ROOT = Path(__file__).resolve().parents[2]
EXPERTS = {  # rows of each group, rows of none, D, F
    "experts: part of a tile, empty groups": ([130, 0, 64, 1, 77], 150, 128, 128),
    "experts: several tiles, the widest": ([0, 300], 0, 256, 256),
}
BLOCKS = {  # rows, D, F
    "float8 blocks: part of a tile": (130, 256, 128),
    "float8 blocks: more groups than buffers": (64, 768, 192),
}


class _Altered:
    """A reference whose indices, or what is read at them, a fault changes."""

    def __init__(self, ref: Any, index: Callable[[Any], Any], value: Callable[[Any], Any]) -> None:
        self._ref, self._index, self._value = ref, index, value

    @property
    def at(self) -> "_Altered":
        return _Altered(self._ref.at, self._index, self._value)

    def __getitem__(self, index: Any) -> Any:
        return self._value(self._ref[self._index(index)])


def _miss_waits() -> None:
    """The warpgroups that compute do not wait for copies."""
    library = vars(mosaic_tile)["plgpu"]
    mosaic_tile.plgpu = types.SimpleNamespace(**vars(library) | {"barrier_wait": lambda _: None})  # type: ignore[attr-defined]


def _read_the_wrong_slot() -> None:
    """Keys are always read from the first buffer of the ring."""
    start = mosaic_tile.QueryTile.__init__

    def faulty(self: Any, block: Any, warpgroup: Any, blocks: Any, buffers: Any, *rest: Any) -> None:
        keys = _Altered(buffers.keys, lambda _: 0, lambda value: value)
        start(self, block, warpgroup, blocks, buffers._replace(keys=keys), *rest)

    mosaic_tile.QueryTile.__init__ = faulty


def _read_a_page_out_of_range() -> None:
    fetch = mosaic_prefill._fetch_pages

    def faulty(block: Any, kv_ref: Any, table_ref: Any, *rest: Any) -> None:
        fetch(block, kv_ref, _Altered(table_ref, lambda index: index, lambda page: page + 1000), *rest)

    mosaic_prefill._fetch_pages = faulty


def _leave_rows_beyond_the_end() -> None:
    """Leave rows beyond the end uninitialized: they are multiplied by 0, and 0 · NaN is NaN."""
    mosaic_tile.QueryTile._clean = lambda *_: None


FAULTS = {
    "missing wait": _miss_waits,
    "wrong slot": _read_the_wrong_slot,
    "page out of range": _read_a_page_out_of_range,
    "rows that nobody wrote": _leave_rows_beyond_the_end,
}


def errors(mode: str, names: list[str]) -> dict[str, float]:
    """Largest error by case, against the reference on the same rounded values; infinite where padding is not finite."""
    found, target = {}, Target("gpu", "9.0", interpret=mode)
    for case in CASES:
        if case.name not in names:
            continue
        data = make(case)
        out = attend(case, data, "gpu_mosaic", target, "bfloat16").astype(np.float32)
        exact = attend(case, data, "reference", Target(), "bfloat16").astype(np.float32)
        real = len(data.expected)
        error = float(np.abs(out[:real] - exact[:real]).max(initial=0.0))
        found[case.name] = error if np.isfinite(out).all() else float("inf")
    for name, (sizes, spare, D, F) in EXPERTS.items():
        if name not in names:
            continue
        rng, E = np.random.default_rng(0), len(sizes)
        rows = jnp.asarray(rng.normal(size=(sum(sizes) + spare, D)), jnp.bfloat16)
        matrices = jnp.asarray(rng.normal(size=(E, D, F)) / D**0.5, jnp.bfloat16)
        outputs = []
        for backend in ("gpu_mosaic", "reference"):
            call = jax.jit(functools.partial(grouped_matmul, backend=backend, target=target))
            outputs.append(np.asarray(call(rows, matrices, jnp.array(sizes, jnp.int32)), np.float32))
        found[name] = float(np.abs(outputs[0] - outputs[1]).max())
    for name, (M, D, F) in BLOCKS.items():
        if name in names:
            found[name] = _error_of_blocks(M, D, F, target)
    return found


def _error_of_blocks(M: int, D: int, F: int, target: Target) -> float:
    """Return the largest error as a share of each row's largest number."""
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.normal(size=(M, D)) * rng.uniform(0.1, 10, (M, 1)), jnp.bfloat16)
    matrix = jnp.asarray(rng.normal(size=(F, D)), jnp.float8_e4m3fn)
    scales = jnp.asarray(rng.uniform(0.5, 2.0, (D // 128, F)), jnp.float32)
    options = {"group": 128, "out_dtype": jnp.bfloat16, "target": target}
    outputs = []
    for backend in ("gpu_mosaic", "reference"):
        call = jax.jit(functools.partial(block_matmul, backend=backend, **options))
        outputs.append(np.asarray(call(rows, matrix, scales), np.float32))
    return float(np.max(np.abs(outputs[0] - outputs[1]) / np.abs(outputs[1]).max(axis=1, keepdims=True)))


def interpret(mode: str, names: list[str]) -> dict[str, float]:
    """`errors` in a process of its own."""
    done = _run(mode, *names)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def planted(fault: str, mode: str, name: str) -> float | str:
    """The error of a case with that fault, or what the interpreter says of it."""
    done = _run("--fault", fault, mode, name)
    return done.stderr if done.returncode else json.loads(done.stdout.splitlines()[-1])[name]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[0] == "--fault":
        FAULTS[given[1]]()
        given = given[2:]
    print(json.dumps(errors(given[0], given[1:])))
