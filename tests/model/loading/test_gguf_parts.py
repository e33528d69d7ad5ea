"""GGUF models in several files, and directories that hold one."""

import logging
from pathlib import Path

import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import read_model_dir
from palladio.model.gguf.gguf_model import gguf_in
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.hub import resolve_model_path
from tests.many_devices import call_with_devices
from tests.model.driver import load, numbers
from tests.model.gguf_files import as_gguf
from tests.model.loading.test_quantized_weights import assert_equal
from tests.tiny_model import make_checkpoint


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    first = as_gguf(make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1), "qwen3", lambda _: "F32", num_parts=3)
    return sorted(first.parent.iterdir())


def test_all_parts_are_one_model(parts: list[Path]) -> None:
    expected = numbers(load(parts[0].parents[1])[1])
    for given in (parts[0].parent, *parts):
        assert resolve_model_path(str(given)) == parts[0]
    assert_equal(numbers(load(parts[0])[1]), expected)


@pytest.mark.slow  # the parts are read above, and test_quantized_weights.py cuts groups
def test_a_split_file_on_two_devices(tmp_path: Path) -> None:
    """Each device has 48 inputs of the projection down, of groups of 32, which are cut in halves."""
    path = make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, hidden_size=64, intermediate_size=96)
    kinds = {"embed_tokens": "Q4_1", "q_proj": "Q4_1", "k_proj": "Q4_1", "v_proj": "Q4_1", "o_proj": "IQ4_NL"}
    file = as_gguf(path, "qwen3", lambda name: kinds.get(name.split(".")[-2], "Q5_0"), num_parts=3)
    one, two = call_with_devices("tests.model.loading.test_formats", "wide_logits", str(file), [1, 2])
    assert np.std(one) > 0.1
    np.testing.assert_allclose(two, one, atol=2e-5, rtol=0)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    for given in (parts[2], parts[0].parent):
        with pytest.raises(ConfigError, match=r"is one of 3 parts, and m-00002-of-00003\.gguf missing: download every"):
            resolve_model_path(str(given))


def test_parts_that_are_mixed_up_are_refused(parts: list[Path]) -> None:
    parts[1].rename(parts[1].with_name("x"))
    parts[2].rename(parts[1])
    parts[1].with_name("x").rename(parts[2])
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf says that it is part 2 \(from 0\) of 3"):
        load(parts[0])
    alone = parts[0].rename(parts[0].with_name("alone.gguf"))
    with pytest.raises(CheckpointError, match=r"part 0 \(from 0\) of 3, but is read as part 0 of 1"):
        read_model_dir(alone)


def test_a_directory_with_one_model_is_that_model(
    parts: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    projector = tmp_path / "parts" / "mmproj-m-f16.gguf"
    projector.write_bytes(b"GGUF")
    assert resolve_model_path(str(tmp_path / "parts")) == parts[0]
    with caplog.at_level(logging.WARNING):
        load(parts[0])
    assert [record.getMessage() for record in caplog.records if "text only" in record.getMessage()] == [
        f"{parts[0]}: the model is served for text only; images and sound are not supported. Ignored tensors: those of "
        "mmproj-m-f16.gguf"
    ]
    (tmp_path / "parts" / "other.gguf").write_bytes(b"GGUF")
    assert gguf_in(tmp_path / "parts") is None
    with pytest.raises(ConfigError, match="is a directory of several GGUF models: give one of them: "):
        resolve_model_path(str(tmp_path / "parts"))


def test_a_file_that_lies_elsewhere_is_no_part_of_a_directory(parts: list[Path], tmp_path: Path) -> None:
    elsewhere = parts[1].rename(tmp_path / "elsewhere.gguf")
    parts[1].symlink_to(elsewhere)
    for given in (parts[0], parts[0].parent):
        with pytest.raises(ConfigError, match=r"m-00002-of-00003\.gguf is a link to .*elsewhere\.gguf, outside of"):
            resolve_model_path(str(given))


def test_safetensors_come_before_a_gguf_file(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve_model_path(str(tmp_path)) == tmp_path
