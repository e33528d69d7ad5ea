"""The step programs compile for TPU and GPU, by the accelerators' own compilers; skipped where those are not installed.

Two layers, one bucket of each kind: what a compiler refuses, it refuses there too.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = {"tpu-v5e": "libtpu", "tpu-v6e": "libtpu", "tpu7x": "libtpu", "h200": "jax_cuda13_plugin"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("target", COMPILER)
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.1-8b"])
def test_every_program_compiles(target, model, tmp_path):
    if importlib.util.find_spec(COMPILER[target]) is None:
        pytest.skip(f"{COMPILER[target]} is not installed")
    report = tmp_path / "report.json"
    sizes = ["--layers", "2", "--decode", "16", "--prefill", "256", "--json", str(report)]
    command = [sys.executable, "benchmarks/aot_steps.py", "--target", target, "--model", model, *sizes]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr[-3000:]
    programs = json.loads(report.read_text())["programs"]
    assert [row["program"] for row in programs] == [
        "forward 16",
        *(f"sample 16 {tier}" for tier in ("greedy", "random", "full")),
        "forward 256/16",
        "score 256",
        "reset",
    ]
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, done.stdout


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {"PYTHONPATH": str(ROOT)}
