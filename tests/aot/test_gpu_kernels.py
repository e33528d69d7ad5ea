"""The GPU kernels compile for an H200 without spilling, and a decode step on them is one CUDA graph."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = 2
# An autotuner chooses on the device.
PRODUCTS = {"xla": "", "cublas": "--xla_gpu_enable_triton_gemm=false"}
# Of a decode step of 2 and of 16 rows, with two layers: the embedding, plans of attention's parts, and a layer's
# products, cache write, rotation of q, attention and its sum, activation, norms with residuals, and what XLA splits
# these into before it has seen the device. For cuBLAS, two rows are padded to eight. Measured, and two more.
KERNELS = {
    ("qwen2.5-0.5b", "xla"): (33, 35),
    ("qwen2.5-0.5b", "cublas"): (42, 35),
    ("llama-3.1-8b", "xla"): (41, 41),
    ("llama-3.1-8b", "cublas"): (50, 37),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is None, reason="no CUDA plugin"),
]


def test_no_kernel_spills(tmp_path):
    report = tmp_path / "kernels.json"
    table = _run("benchmarks/aot/aot_gpu_kernels.py", "--json", str(report))
    kernels = json.loads(report.read_text())["kernels"]
    assert len(kernels) > 150, table
    mosaic = {"paged_prefill_mosaic", "grouped_matmul_mosaic", "block_matmul_mosaic"}
    assert {row["kernel"] for row in kernels if row["wgmma"]} >= mosaic, table
    assert {row["kernel"] for row in kernels if row["float8_wgmma"]} == {"block_matmul_mosaic"}, table
    assert [row for row in kernels if row["wrong"]] == [], table


@pytest.mark.parametrize("backend", ["gpu_triton", "gpu_mosaic"])
@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.1-8b"])
def test_a_step_on_the_kernels_is_one_cuda_graph(model, products, backend, tmp_path):
    report, dump = tmp_path / "steps.json", tmp_path / "dump"
    sizes = ["--model", model, "--layers", str(LAYERS), "--decode", "2", "16", "--prefill", "256", "--only", "forward"]
    options = ["--target", "h200", "--attention-backend", backend, "--json", str(report)]
    flags = f"--xla_dump_to={dump} {PRODUCTS[products]}"
    table = _run("benchmarks/aot/aot_steps.py", *sizes, *options, XLA_FLAGS=flags)
    programs = json.loads(report.read_text())["programs"]
    assert [row["program"] for row in programs] == ["forward[bs=2]", "forward[bs=16]", "forward[bs=256,tok=256]"]
    for row in programs:
        assert row["wrong"] == [], table
        assert row["data_loops"] == row["branches"] == row["host_calls"] == row["cache_copies"] == 0, table
    listings = sorted(dump.glob("*jit_forward.thunk_sequence_after_thunk_passes.txt"))
    texts = [listing.read_text() for listing in listings]
    assert len(texts) == 3
    for text in texts:
        assert re.findall(r"^\d+: (\w+)", text, re.MULTILINE) == ["kCommandBuffer"], "the step is not one graph"
        assert text.count(" kCublasLtMatmul ") == (4 * LAYERS if products == "cublas" else 0)
        assert "kWhile" not in text
        assert "kConditional" not in text
    kernels = [text.count(" kCustomKernel ") + text.count(" kCublasLtMatmul ") for text in texts[:2]]
    assert all(found <= most for found, most in zip(kernels, KERNELS[model, products], strict=True)), kernels


def test_sampling_is_one_cuda_graph(tmp_path):
    """Of 16 rows: 5 kernels for greedy ones, 60 with top_k and top_p, whose loops were once 64 launches of the host."""
    dump = tmp_path / "dump"
    sizes = ["--model", "qwen2.5-0.5b", "--layers", "1", "--decode", "16", "--prefill", "--only", "sample"]
    table = _run("benchmarks/aot/aot_steps.py", *sizes, "--target", "h200", XLA_FLAGS=f"--xla_dump_to={dump}")
    texts = [listing.read_text() for listing in sorted(dump.glob("*jit_sample.thunk_sequence_after_thunk_passes.txt"))]
    for text in texts:
        assert re.findall(r"^\d+: (\w+)", text, re.MULTILINE) == ["kCommandBuffer"], table
    most = (5, 8, 62, 63, 82)  # greedy, plain, random, masked, full
    kernels = [text.count(" kCustomKernel ") for text in texts]
    assert all(found <= allowed for found, allowed in zip(kernels, most, strict=True)), kernels


def test_experts_of_few_rows_have_few_programs(tmp_path):
    """Of two layers, and 2 rows with 8 of 128 experts each: 16 rows are of 16 groups at most. One graph, in which gate
    and up are multiplied side by side, and what a router's logits are for is one kernel, and the plan of the products
    another. Measured, also with 64 rows: 53 kernels, and a copy."""
    report, dump = tmp_path / "steps.json", tmp_path / "dump"
    sizes = ["--model", "qwen3-30b-a3b", "--layers", str(LAYERS), "--decode", "2", "64", "--prefill"]
    sizes += ["--only", "forward"]
    options = ["--target", "h200", "--attention-backend", "gpu_triton", "--json", str(report)]
    table = _run("benchmarks/aot/aot_steps.py", *sizes, *options, XLA_FLAGS=f"--xla_dump_to={dump}")
    texts = [listing.read_text() for listing in sorted(dump.glob("*jit_forward.thunk_sequence_after_thunk_passes.txt"))]
    for text in texts:
        assert re.findall(r"^\d+: (\w+)", text, re.MULTILINE) == ["kCommandBuffer"], table
        assert text.count(" kCustomKernel ") <= 55, table
        assert text.count(" route_experts ") == text.count(" plan_row_tiles ") == LAYERS, table
    text, _ = texts
    products = re.findall(r"next=(\d+) \(\d+\)\s*\] grouped_matmul\w* grid: \[(\d+), (\d+), 1\]", text)
    assert [(int(tiles), int(columns)) for _, tiles, columns in products] == [(17, 6), (17, 6), (17, 16)] * LAYERS
    for gate, up in (products[:2], products[3:5]):
        assert gate[0] == up[0], "one waits for the other"


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
