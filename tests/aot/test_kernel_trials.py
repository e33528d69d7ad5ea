"""The trials of kernels compile for TPUs and GPUs, and take little memory."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 2 * 2**30  # of a device that has 32 GiB and more

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PLUGINS = {"v6e": "libtpu", "7x": "libtpu", "h200": "jax_cuda13_plugin"}


@pytest.mark.parametrize("target", PLUGINS)
def test_every_trial_compiles(target, tmp_path):
    if importlib.util.find_spec(PLUGINS[target]) is None:
        pytest.skip(f"{PLUGINS[target]} is not installed")
    out = tmp_path / "trials.json"
    script = ROOT / "benchmarks" / "aot" / "kernel_trials.py"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    command = [sys.executable, str(script), "--targets", target, "--json", str(out)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    assert [row for row in rows if row["wrong"]] == [], run.stderr[-2000:]
    assert run.returncode == 0, run.stderr[-2000:]
    assert {row["model"] for row in rows} == {"llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b"}
    assert max(row["bytes"] for row in rows) < MOST_BYTES
