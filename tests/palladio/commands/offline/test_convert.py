"""`palladio convert`: the command, its errors, and that what it writes is served like any model directory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio import Engine
from palladio.__main__ import main
from palladio.commands.offline import convert
from palladio.flags.default_model import default_model_path
from tests.model.gguf_files import as_gguf
from tests.model.make_goldens import GOLDENS
from tests.model.make_goldens import prompts as golden_prompts
from tests.runtime.text.tokenizers.test_gguf_tokenizer import metadata
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).resolve().parents[4]
PROMPTS = golden_prompts()[:2]
NUM_TOKENS = 4


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "palladio", "convert", *words]
    return subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=200
    )


def tokens(path: Path, cache: Path) -> list[list[int]]:
    limits = {"max_total_tokens": 512, "max_running_requests": 2, "chunked_prefill_size": 32, "compile": "lazy"}
    flags = {"skip_tokenizer_init": True, "compilation_cache_dir": str(cache), "dtype": "float32"}
    with Engine(model_path=str(path), **limits, **flags) as engine:
        results: Any = engine.generate(
            input_ids=PROMPTS, sampling_params={"temperature": 0, "max_new_tokens": NUM_TOKENS}
        )
    return [result["output_ids"] for result in results]


@pytest.mark.slow
def test_a_converted_model_is_served_as_it_was(tmp_path: Path) -> None:
    source, out = make_checkpoint(tmp_path / "source", "qwen3"), tmp_path / "out"
    done = run(str(source), str(out), "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert f"serve it with --model-path {out}" in done.stderr
    golden = np.load(GOLDENS / "qwen3.npz")["tokens"]
    assert tokens(out, tmp_path / "xla") == golden[: len(PROMPTS), :NUM_TOKENS].tolist()
    again = run(str(out), str(tmp_path / "twice"))
    assert (again.returncode, "is already a converted checkpoint" in again.stderr) == (2, True)
    same = run(str(source), str(source))
    assert (same.returncode, "is the model directory itself" in same.stderr) == (2, True)


@pytest.mark.slow  # tests/model/loading/test_gguf.py has the bits
def test_a_split_gguf_file_is_converted_once_and_served(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "source", "qwen3", hidden_size=64, intermediate_size=96)
    kinds = {"down_proj": "Q5_0", "o_proj": "IQ4_NL"}
    more = metadata(build_tiny_tokenizer(path), model="gpt2", pre="gpt-2", eos_token_id=2)
    del more["general.architecture"]
    file = as_gguf(path, "qwen3", lambda name: kinds.get(name.split(".")[-2], "Q4_1"), more, num_parts=3)
    done = run(str(file.parent), str(tmp_path / "out"), "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert "tensors Q4_1 → " in done.stderr
    expected = tokens(path / "wide", tmp_path / "xla")
    assert tokens(tmp_path / "out", tmp_path / "xla") == expected
    assert tokens(file, tmp_path / "xla") == expected


def test_a_name_of_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def note(module: str, *arguments: str, environment: object) -> int:
        given.extend(arguments)
        return 0

    monkeypatch.setattr(convert, "run_module", note)
    assert main(["convert", "default", "out"]) == 0
    assert given[:2] == [str(default_model_path()), "out"]


@pytest.mark.parametrize(
    "words",
    [
        ("only-one",),
        pytest.param(("/nowhere", "out"), marks=pytest.mark.slow),
        pytest.param(("a", "b", "--dtype", "int3"), marks=pytest.mark.slow),
    ],
)
def test_wrong_words(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
