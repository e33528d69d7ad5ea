"""The GPU kernels compile for an H200 without spilling, and a decode step on them is one CUDA graph."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = 2
# Of a layer: 4 products, cache write, rotation of q, attention and its sum, activation, norms with residuals, and what
# XLA splits these into before it has seen the device.
KERNELS_PER_LAYER, KERNELS_BESIDE = 14, 10
JAX = tuple(map(int, version("jax").split(".")[:2]))
BACKENDS = ["gpu_triton", *(["gpu_mosaic"] if JAX >= (0, 12) else [])]  # before, Mosaic's kernels break the graph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is None, reason="no CUDA plugin"),
]


def test_no_kernel_spills(tmp_path):
    report = tmp_path / "kernels.json"
    table = _run("benchmarks/aot_gpu_kernels.py", "--json", str(report))
    kernels = json.loads(report.read_text())["kernels"]
    assert len(kernels) > 150, table
    mosaic = {"paged_prefill_mosaic", "grouped_matmul_mosaic", "block_matmul_mosaic"}
    assert {row["kernel"] for row in kernels if row["wgmma"]} >= mosaic, table
    assert {row["kernel"] for row in kernels if row["float8_wgmma"]} == {"block_matmul_mosaic"}, table
    assert [row for row in kernels if row["wrong"]] == [], table


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.1-8b"])
def test_a_step_on_the_kernels_is_one_cuda_graph(model, backend, tmp_path):
    report, dump = tmp_path / "steps.json", tmp_path / "dump"
    sizes = ["--model", model, "--layers", str(LAYERS), "--decode", "16", "--prefill", "256", "--only", "forward"]
    options = ["--target", "h200", "--attention-backend", backend, "--json", str(report)]
    table = _run("benchmarks/aot_steps.py", *sizes, *options, XLA_FLAGS=f"--xla_dump_to={dump}")
    programs = json.loads(report.read_text())["programs"]
    assert [row["program"] for row in programs] == ["forward[bs=16]", "forward[bs=256,tok=256]"]
    for row in programs:
        assert row["wrong"] == [], table
        assert row["data_loops"] == row["branches"] == row["host_calls"] == row["cache_copies"] == 0, table
    decode, prefill = sorted(dump.glob("*jit_forward.thunk_sequence_after_thunk_passes.txt"))
    for listing in (decode, prefill):
        lines = listing.read_text().splitlines()
        thunks = [line for line in lines if re.match(r"\d+: ", line)]
        assert [line.split()[1] for line in thunks] == ["kCommandBuffer"], "the step is not one graph"
        assert not any("kWhile" in line or "kConditional" in line for line in lines)
    kernels = sum("kCustomKernel" in line for line in decode.read_text().splitlines())
    assert kernels <= LAYERS * KERNELS_PER_LAYER + KERNELS_BESIDE


def _run(script: str, *flags: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, script, *flags],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr[-3000:]
