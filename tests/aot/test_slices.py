"""Well-known models with all their layers compile for slices that people rent, and nothing gathers their weights."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"Qwen2.5-0.5B": 24, "Llama-3.1-8B": 32, "Qwen3-32B": 64, "Llama-3.1-70B": 80}
ROWS = (  # those of benchmarks/paper/slices.py
    *(("Qwen2.5-0.5B", "v5e-1"), ("Llama-3.1-8B", "v5e-4"), ("Llama-3.1-8B", "v6e-8"), ("Llama-3.1-8B", "h200-1")),
    *(("Qwen3-32B", "v6e-4"), ("Llama-3.1-70B", "v6e-8"), ("Llama-3.1-70B", "v5p-8"), ("Llama-3.1-70B", "tpu7x-8")),
    ("Llama-3.1-70B", "h200-8"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]


@pytest.mark.parametrize(("model", "place"), ROWS)
def test_a_model_on_a_slice(model: str, place: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("jax_cuda13_plugin" if place.startswith("h200") else "libtpu") is None:
        pytest.skip("its compiler is not installed")
    figures, path = tmp_path / "slices.json", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "benchmarks/paper/slices.py", "--json", str(figures), "--row", model, place]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False)
    (row,) = json.loads(figures.read_text())["rows"]
    assert "error" not in row, row
    sums = {"all-reduce": 2 * LAYERS[model] + 1} if row["devices"] > 1 else {}
    assert row["collectives"] == sums


@pytest.mark.parametrize("place", ["v6e-1", "h200-1"])
def test_embeddings(place: str, tmp_path: Path) -> None:
    """What `palladio plan --is-embedding --compile` says: nothing decodes, and nothing samples."""
    if importlib.util.find_spec("jax_cuda13_plugin" if place.startswith("h200") else "libtpu") is None:
        pytest.skip("its compiler is not installed")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "palladio", "plan", "--model-path", str(tmp_path), "--topology", place]
    done = subprocess.run(
        [*command, "--is-embedding", "--compile"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "collectives of a decode pass: none" in done.stdout
    assert "prompts:" in done.stdout
    assert "1 request:" not in done.stdout
