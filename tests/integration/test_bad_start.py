"""Checkpoints and flags that cannot be served: exit code 2, one line that says what to change, no traceback."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from palladio.runtime.devices.accelerators import Machine
from tests.integration.serving import LIMITS, build_checkpoint
from tests.model.gguf_files import as_gguf


def start(model_dir: Path | str, *flags: str) -> str:
    """The last line of a start that must fail."""
    words = ["--model-path", str(model_dir), "--host", "127.0.0.1", "--port", "0", *shlex.split(LIMITS), *flags]
    done = subprocess.run(
        [sys.executable, "-m", "palladio.launch_server", *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    lines = done.stderr.strip().splitlines()
    assert sum("error: " in line for line in lines) == 1, done.stderr
    assert lines[-1].startswith("error: "), done.stderr
    return lines[-1]


def truncated(directory: Path) -> None:
    file = directory / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1000)


def garbage(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\xff" * 5000)


def empty(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"")


def lacking(directory: Path) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)


def without_tokenizer(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()


def broken_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"version": "1.0"')


def without_config(directory: Path) -> None:
    (directory / "config.json").unlink()


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "model.safetensors"),
        pytest.param(garbage, "model.safetensors", marks=pytest.mark.slow),
        pytest.param(empty, "model.safetensors", marks=pytest.mark.slow),
        pytest.param(lacking, "model.norm.weight", marks=pytest.mark.slow),
        pytest.param(without_tokenizer, "--tokenizer-path", marks=pytest.mark.slow),
        pytest.param(broken_tokenizer, "tokenizer", marks=pytest.mark.slow),
        pytest.param(without_config, "config.json", marks=pytest.mark.slow),
    ],
)
def test_damaged_checkpoint(damage, words, tmp_path):
    directory = build_checkpoint(tmp_path)
    damage(directory)
    line = start(directory)
    assert words in line
    assert str(directory) in line


def cut_short(files: list[Path]) -> None:
    os.truncate(files[1], files[1].stat().st_size - 10)


def of_a_part_less(files: list[Path]) -> None:
    files[1].unlink()


def whole(files: list[Path]) -> None:
    assert len(files) == 2


@pytest.mark.slow  # above is a damaged file, and tests/model/loading/test_gguf.py has these
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            whole,
            ("tensor blk.0.ffn_up.weight in m-0000", "has the GGUF type IQ3_S", "Give a file in one of these"),
        ),
        (of_a_part_less, ("m-00002-of-00002.gguf missing", "download every part into the same directory")),
        (cut_short, ("m-00002-of-00002.gguf is truncated: tensor", "Download it again")),
    ],
)
def test_damaged_gguf_files(damage, words, tmp_path):
    """In a process of its own, as users see it; tests/model/loading/test_gguf.py has more of them."""
    directory = build_checkpoint(tmp_path, hidden_size=64, intermediate_size=96)
    other = {"blk.0.ffn_up.weight": ("IQ3_S", (96, 64), bytes(96 * 64))} if damage is whole else {}
    file = as_gguf(directory, "qwen3", lambda name: "Q4_1", extra=other, num_parts=2)
    damage(sorted(file.parent.iterdir()))
    line = start(file, "--tokenizer-path", str(directory))
    assert all(each in line for each in words), line


@pytest.mark.slow  # tests/runtime/text/hub/test_hub.py and tests/runtime/core/test_tensor_parallel.py have the errors
@pytest.mark.usefixtures("environment")
def test_flags(tmp_path):
    directory = build_checkpoint(tmp_path)
    assert "no such directory" in start(tmp_path / "nowhere")
    assert "use --tp-size 1" in start(directory, "--tp-size", "64")


@pytest.mark.slow  # tests/runtime/devices/test_device_choice.py has the error
@pytest.mark.usefixtures("environment")
def test_a_device_that_is_not_there(tmp_path):
    """Of a plugin that is not installed jax says nothing: it ends with an assertion."""
    device, extra = ("tpu", "tpu") if "cuda" in Machine.look().signs else ("cuda", "cuda13")
    line = start(build_checkpoint(tmp_path), "--device", device)
    assert line.startswith(f"error: --device {device}: ")
    assert f"pip install '.[{extra}]'" in line
    assert "or use --device cpu" in line
