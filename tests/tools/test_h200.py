"""The scripts that measure an H200, as far as they can be tried without one."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # of a benchmark, not of the server

ROOT = Path(__file__).resolve().parents[2]
SIZE = {
    "requests": 1,
    "tokens/s": 1500.0,
    "step ms": 0.667,
    "limit tokens/s": 4000.0,
    "share of limit": 0.375,
    "spread": 0.02,
}
ENGINE = {
    "seconds to ready": 31.5,
    "num_programs": 67,
    "compile_seconds": 25.0,
    "cache_hits": 0,
    "max_running_requests": 512,
    "attention_kernels": "gpu_triton",
}
IDLE = {"idle µs p50": 0.0, "idle µs p99": 20.0}
REPORT: dict[str, Any] = {
    "command": "benchmarks/h200.sh",
    "date": "2026-11-22T10:00:00+0000",
    "versions": {"jax": "0.11.2"},
    "parts": {
        "engine qwen": {
            "rows": {"qwen decode 1": {"tokens/s": 1500.0, **IDLE}, "qwen chat 5000": {"tokens/s": 30e3, **IDLE}},
            "engines": [ENGINE],
        },
        "engine llama": {"rows": {"llama decode 1": {"tokens/s": 220.0, **IDLE}}, "error": "took more than 100 s"},
        "sweep qwen": {
            "engines": [ENGINE | {"seconds to ready": 9.0, "cache_hits": 67}],
            "batch sizes": [SIZE, SIZE | {"requests": 64, "tokens/s": 60e3, "limit tokens/s": 190e3}],
            "traces": {
                "1 requests": {"kernels a step": 220.0, "busy share": 0.9, "gap µs p50": 3.0, "gap µs p99": 8.0},
                "64 requests": {"error": "nothing ran"},
            },
        },
        "peers": {"graph": {"qwen2.5-0.5b batch 1": {"eager ms": 9.0, "graph ms": 0.5}}},
    },
}


@pytest.fixture
def h200() -> ModuleType:
    from benchmarks.gpu import h200

    return h200


def test_the_table_says_what_was_reached_and_what_is_missing(h200: ModuleType) -> None:
    rows = {name: (figure, limit, verdict) for name, figure, limit, verdict in h200.table(REPORT)}
    assert rows["Qwen2.5-0.5B, 1 request, decode"] == ("1,500 tokens/s", "4,300", "reached")
    assert rows["Qwen2.5-0.5B, 5,000 × 128, 200 running"] == ("30,000 tokens/s", "", "below 40,000")
    assert rows["Llama-3.1-8B, 500 running × 500"] == ("missing", "", "MISSING")
    assert rows["part engine llama"] == ("took more than 100 s", "", "FAILED")
    found = "of them found; attention by gpu_triton"
    assert rows["qwen, cold start, 512 running"][0] == f"31.5 s, 67 programs in 25.0 s, 0 {found}"
    assert rows["qwen, warm start, 512 running"][0] == f"9.0 s, 67 programs in 25.0 s, 67 {found}"
    assert rows["qwen decode 1: idle gap between steps"][0] == "p50 at most 0 µs, p99 at most 20 µs"
    assert rows["qwen, 64 at once, decode"][:2] == ("60,000 tokens/s ± 2%, 0.67 ms a step, 38%", "190,000")
    assert rows["qwen, trace of 1 requests"][0].endswith("device busy 90%, gap µs p50 3.0 p99 8.0")
    assert rows["qwen, trace of 64 requests"][0] == "nothing ran"


def test_the_parts_with_goals_have_all_of_their_time(h200: ModuleType) -> None:
    assert h200.TOTAL_SECONDS < 480
    assert tuple(h200.PARTS)[: len(h200.PARTS_WITH_GOALS)] == h200.PARTS_WITH_GOALS
    assert sum(h200.PARTS[name].seconds for name in h200.PARTS_WITH_GOALS) < h200.TOTAL_SECONDS


def plot(tmp_path: Path, report: dict[str, Any]) -> tuple[subprocess.CompletedProcess[str], Path]:
    source, svg = tmp_path / "report.json", tmp_path / "plot.svg"
    source.write_text(json.dumps(report))
    command = [sys.executable, "benchmarks/gpu/h200_plot.py", str(source), "--svg", str(svg)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False), svg


def test_a_plot_of_what_was_measured(tmp_path: Path) -> None:
    done, svg = plot(tmp_path, REPORT)
    assert done.returncode == 0, done.stderr
    drawn = svg.read_text()
    for text in ("Qwen2.5-0.5B", "requests at once", "tokens per second", "Palladio", "one CUDA graph", "JAX 0.11.2"):
        assert text in drawn
    assert "Llama" not in drawn  # which was not measured
    done, svg = plot(tmp_path, REPORT)
    assert svg.read_text() == drawn


def test_a_report_without_batch_sizes_is_told(tmp_path: Path) -> None:
    report = copy.deepcopy(REPORT)
    del report["parts"]["sweep qwen"]
    done, svg = plot(tmp_path, report)
    assert done.returncode == 1
    assert "no batch sizes in it: benchmarks/h200.sh measures them" in done.stderr
    assert not svg.exists()


@pytest.mark.slow
def test_one_models_parts_on_a_cpu(tmp_path: Path) -> None:
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    command = ["benchmarks/h200.sh", "--tiny", "--only", "engine qwen", "sweep qwen"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    for row in (
        "qwen, cold start, 4 running",
        "qwen, warm start, 4 running",
        "qwen, 4 at once, decode",
        "qwen, trace of 1 requests",
        "MISSING",
    ):
        assert row in done.stdout, done.stderr  # the other model's rows are missing
    (written,) = tmp_path.glob("h200_tiny_*.json")
    engine, sweep = json.loads(written.read_text())["parts"].values()
    assert "error" not in engine | sweep
    assert engine["rows"].keys() == {"qwen decode 1", "qwen chat 5000"}
    assert [row["requests"] for row in sweep["batch sizes"]] == [1, 2, 4]
    assert all(row["tokens/s"] > 0 for row in sweep["batch sizes"])
    assert sweep["traces"]["1 requests"]["steps"] == pytest.approx(8, abs=1)
    assert len(engine["engines"]) == 2
    assert len(sweep["engines"]) == 1


@pytest.mark.slow
def test_the_hosts_share_of_a_decode_step(tmp_path: Path) -> None:
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    command = ["benchmarks/h200.sh", "smoke", "--tiny", "--only", "host"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)
    (written,) = tmp_path.glob("gpu_smoke_tiny_*.json")
    for step in json.loads(written.read_text())["host"]["steps"]:
        assert min(step["wait"], step["host"]) > 0
        assert step["other"] < 0.5 * (step["wait"] + step["host"])  # whatever it waits for is counted as waiting
