"""Interprets the kernels for Hopper GPUs on cases of the suites, and prints the largest error of each as JSON.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/pallas_kernels/interpret_mosaic.py plain mixed …

A process of its own: warpgroups wait for each other, each on a thread of XLA's pool, whose size is fixed at its start.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, attend, make

ROOT = Path(__file__).resolve().parents[2]
EXPERTS = {  # rows of each group, rows of none, D, F
    "experts: part of a tile, empty groups": ([130, 0, 64, 1, 77], 150, 128, 128),
    "experts: several tiles, the widest": ([0, 300], 0, 256, 256),
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
    return found


def interpret(mode: str, names: list[str]) -> dict[str, float]:
    """`errors` in a process of its own."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, __file__, mode, *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(errors(sys.argv[1], sys.argv[2:])))
