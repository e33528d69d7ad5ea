"""Interprets the kernels for Hopper GPUs on cases of the suite, and prints the largest error of each as JSON.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/pallas_kernels/interpret_mosaic.py plain mixed …

A process of its own: warpgroups wait for each other, each on a thread of XLA's pool, whose size is fixed at its start.
"""

import json
import sys

import numpy as np

from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, attend, make


def errors(mode: str, names: list[str]) -> dict[str, float]:
    """Largest error by case, against the reference on the same rounded values; infinite where padding is not finite."""
    found = {}
    for case in CASES:
        if case.name not in names:
            continue
        data = make(case)
        out = attend(case, data, "gpu_mosaic", Target("gpu", "9.0", interpret=mode), "bfloat16").astype(np.float32)
        exact = attend(case, data, "reference", Target(), "bfloat16").astype(np.float32)
        real = len(data.expected)
        error = float(np.abs(out[:real] - exact[:real]).max(initial=0.0))
        found[case.name] = error if np.isfinite(out).all() else float("inf")
    return found


if __name__ == "__main__":
    print(json.dumps(errors(sys.argv[1], sys.argv[2:])))
