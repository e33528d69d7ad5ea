"""benchmarks/gpu/kernels.py, tried without a GPU: every workload kind runs, and its outputs are right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_kernel_benchmark_runs_without_a_gpu(tmp_path):
    out = tmp_path / "kernels.json"
    subprocess.run(
        [sys.executable, "benchmarks/gpu/kernels.py", "--tiny", "--no-torch", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    figures = json.loads(out.read_text())
    assert figures["numerics"]["ok"]
    assert {row["workload"].split()[0] for row in figures["workloads"]} == {"decode", "prefill", "experts,"}
    assert all(row["ok"] and row["µs"] > 0 for row in figures["workloads"])
