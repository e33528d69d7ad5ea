"""benchmarks/peers/compare_peers.py: what counts, and what comes of it; no peer is built or started."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def peers():
    return importlib.import_module("benchmarks.peers.compare_peers")


def sample(tokens_per_second: float, error: str | None = None) -> dict[str, object]:
    return {"tokens_per_second": tokens_per_second, "error": error}


def test_medians_are_of_the_best_variant_and_leave_refused_samples_out(peers):
    sides = [
        peers.Side("palladio", None, {"": ["p"]}),
        peers.Side("llama-f32", 32, {"split": ["l"], "unified": ["l"]}),
        peers.Side("transformers-bf16", 16, {"": ["t"]}),
        peers.Side("llama-q8_0", 8, {"split": ["l"]}),
    ]
    rounds = {
        "palladio": [
            {"single": {"": [sample(90), sample(110)]}, "peak_gb": {"": 2.5}},
            {"single": {"": [sample(100), sample(900, "noise")]}, "peak_gb": {"": 3.0}},
        ],
        "llama-f32": [{"single": {"split": [sample(40), sample(60)], "unified": [sample(80)]}}],
        "transformers-bf16": [{"single": {"": [sample(700, "other programs used 2.0 cores")]}}, {"errors": ["late"]}],
        "llama-q8_0": [{"single": {"split": [sample(200)]}}],
    }
    table = peers.summarize(sides, rounds, ["single"])
    row = table["single"]
    assert table["peak GB"] == {"palladio": 3.0}
    assert row["palladio"] == {"tokens_per_second": 100, "samples": 3, "refused": 1}
    assert row["llama-f32"] == {"tokens_per_second": 80, "samples": 1, "refused": 0}
    assert row["transformers-bf16"] == {"tokens_per_second": None, "samples": 0, "refused": 1}
    assert row["palladio / best of f32 or bf16"] == 1.25
    assert row["palladio / best of 8 bits"] == 0.5


@pytest.mark.parametrize(
    ("failures", "busy", "error"),
    [(0, 0.0, None), (1, 0.0, "1 failed: short"), (0, 9.0, "other programs used")],
)
def test_a_sample_with_a_failure_or_with_other_programs_is_refused(peers, monkeypatch, failures, busy, error):
    async def run(target, client, workload, texts, limit):
        outcome = {"failures": failures, "errors": ["short"] * failures}
        return outcome | {"tokens_per_second": 5.0, "ttft_p50": 0.1, "itl_p50": 0.1}

    seconds = iter((100.0, 100.0 + busy))
    monkeypatch.setattr(peers, "run_prompts", run)
    monkeypatch.setattr(peers, "busy_seconds", lambda: next(seconds))
    monkeypatch.setattr(peers, "cpu_seconds_of_tree", lambda pid: 0.0)
    monkeypatch.setattr(peers.time, "perf_counter", iter((0.0, 1.0)).__next__)

    class Process:
        pid = 1

    server = peers.RunningServer("http://127.0.0.1:1", Process())
    target = peers.Target("http://127.0.0.1:1/v1", "m")
    found = peers.measure(server, target, peers.WORKLOADS["single"], ["x"], 0.3)
    assert found.tokens_per_second == 5.0
    assert (found.error or "").startswith(error or "")
    assert (found.error is None) == (error is None)


def test_a_peer_that_cannot_be_built_is_left_out_with_the_reason(peers, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("peer_builds.shutil.which", lambda name: None)
    words = ["--sides", "palladio", "llama-f32", "--cache", str(tmp_path), "--cores", "0"]
    monkeypatch.setattr(peers.shutil, "which", lambda name: None if name in ("cmake", "c++") else f"/bin/{name}")
    args = peers.parse(words)
    sides = list(peers.sides_of(args, tmp_path, [peers.WORKLOADS["single"]]))
    assert [side.name for side in sides] == ["palladio"]
    assert "llama-f32 is left out: building llama.cpp needs cmake and c++" in capsys.readouterr().err


def test_programs_can_be_shown_a_cpu_without_avx512(peers, tmp_path):
    """What XLA, our C++ and llama.cpp choose their code by."""
    if "cpuid_fault" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU answers cpuid to every program")
    script = (
        "import jax; from palladio.pallas_kernels.target import Target; import jax.numpy as jnp;"
        "kind = Target.of(jax.devices()[0]).kind; ones = jnp.ones((64, 64));"
        "code = jax.jit(lambda a, b: jnp.exp(a @ b)).lower(ones, ones).compile();"
        "print(kind, float(code(ones, ones)[0, 0]) > 1e27)"
    )
    library = peers.avx2_library(tmp_path)
    environment = os.environ | {"LD_PRELOAD": str(library), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["avx2", "True"]
