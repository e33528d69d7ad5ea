"""Weights of a damaged folder: one CheckpointError that names the file, whatever is wrong with it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.config.config import ModelConfig
from palladio.model.gguf.gguf_config import config_of_gguf
from palladio.model.gguf.gguf_file import GgufFile
from palladio.model.loading.readers.checkpoint import INDEX_NAME, SINGLE_NAME, Checkpoint
from tests.model.gguf_files import metadata_of, write_gguf
from tests.tiny_model import tiny_config

ONES = np.ones((2, 3), np.float32)


def index(folder: Path, names: dict[str, object]) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": names}))


def header(folder: Path, text: str, data: bytes = b"") -> None:
    (folder / SINGLE_NAME).write_bytes(len(text).to_bytes(8, "little") + text.encode() + data)


def test_files_in_folders_below_are_read_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    save_file({"a": ONES}, tmp_path / "model.safetensors-1")
    save_file({"b": 2 * ONES}, tmp_path / "below" / "model.safetensors-1")
    names = {"a": "model.safetensors-1", "b": "below/model.safetensors-1", "c": "./below//model.safetensors-1"}
    index(tmp_path, names)
    with Checkpoint(tmp_path) as checkpoint:
        found = {name: np.array(checkpoint.read(tensor)) for name, tensor in checkpoint.tensors.items()}
        for tensor in checkpoint.tensors.values():
            checkpoint.release(tensor)
    np.testing.assert_equal(found, {"a": ONES, "b": 2 * ONES})


ENTRY = '{"a": {"dtype": "F32", "shape": %s, "data_offsets": %s}}'
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an index that leads out": (lambda f: index(f, {"a": "../../../etc/passwd"}), "no path below it"),
    "an absolute name": (lambda f: index(f, {"a": "/etc/passwd"}), "no path below it"),
    "a number as a name": (lambda f: index(f, {"a": 5}), "weight_map must give the name of a file"),
    "an index of lists": (lambda f: (f / INDEX_NAME).write_text("[" * 100_000) and None, "nests lists"),
    "a link elsewhere": (lambda f: (f / SINGLE_NAME).symlink_to("/etc/passwd"), "is a link to /etc/passwd"),
    "a pipe": (lambda f: os.mkfifo(f / SINGLE_NAME), "is a pipe"),
    "a pipe by another name": (lambda f: os.mkfifo(f / "a.safetensors"), "is a pipe"),
    "a header of lists": (lambda f: header(f, "[" * 200_000 + "]" * 200_000), "corrupt header: .* nests lists"),
    "a header that is a list": (lambda f: header(f, "[]"), "corrupt header: it is no object"),
    "an entry that is a text": (lambda f: header(f, '{"a": "b"}'), "corrupt header: tensor a is 'b'"),
    "an endless shape": (lambda f: header(f, ENTRY % ("[Infinity]", "[0, 4]"), bytes(4)), "corrupt header: tensor a"),
    "half a row": (lambda f: header(f, ENTRY % ("[1.5]", "[0, 6]"), bytes(6)), "corrupt header: tensor a"),
    "two negative sizes": (lambda f: header(f, ENTRY % ("[-1, -1]", "[0, 4]"), bytes(4)), "corrupt header: tensor a"),
    "a tensor that is there twice": (lambda f: header(f, '{"a": {}, "a": {}}'), "the key 'a' twice"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_one_error(tmp_path: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(tmp_path)


def test_a_header_over_the_limit_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / SINGLE_NAME).write_bytes((40_000_000).to_bytes(8, "little"))
    os.truncate(tmp_path / SINGLE_NAME, 50_000_000)
    with pytest.raises(CheckpointError, match="a header of 40,000,000 bytes, over the limit"):
        Checkpoint(tmp_path)


def test_an_index_of_more_files_than_any_model_has_is_refused(tmp_path: Path) -> None:
    names = {f"t{number}": f"{number}.safetensors" for number in range(5000)}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="names 5,000 files, over the limit of 4,096"):
        Checkpoint(tmp_path)


def test_tensors_of_all_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        tensors = {f"{number}.{each}": np.zeros(1, np.float32) for each in range(2)}
        save_file(tensors, tmp_path / f"{number}.safetensors")
    monkeypatch.setattr("palladio.model.loading.readers.checkpoint.MAX_TENSORS", 4)
    with pytest.raises(CheckpointError, match="more than 4 tensors, 6 up to"):
        Checkpoint(tmp_path)


def test_more_ends_than_any_model_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="eos_token_id must list at most 32 token ids, found 100000"):
        ModelConfig.from_hf(tiny_config("qwen2", eos_token_id=list(range(100_000))))
    with pytest.raises(ConfigError, match="eos_token_id must list at most 32 token ids, found 40 in all files"):
        ModelConfig.from_hf(tiny_config("qwen2", eos_token_id=[*range(20)]), {"eos_token_id": [*range(20, 40)]})


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


GGUF_HEADS = {
    "an array of 3 GB": (
        number(0) + number(1) + number(1) + b"k" + number(9, 4) + number(0, 4) + number(3 * 10**9),
        "more than",
    ),
    "many keys": (number(0) + number(2**40), "keys and 0 tensors, over the limits"),
    "many tensors": (number(2**20) + number(0), "0 keys and 1048576 tensors, over the limits"),
    "an unknown type of any size": (
        number(1) + number(0) + number(1) + b"a" + number(1, 4) + number(2**62) + number(99, 4) + number(0),
        "truncated: tensor a has shape",
    ),
}


@pytest.mark.parametrize("name", GGUF_HEADS)
def test_a_head_of_gguf_takes_no_more_than_a_tokenizer_needs(tmp_path: Path, name: str) -> None:
    head, words = GGUF_HEADS[name]
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + number(3, 4) + head)
    os.truncate(file, 4 * 10**9)  # a hole
    with pytest.raises(CheckpointError, match=words):
        GgufFile(file)


@pytest.mark.parametrize("heads", [0, 1.5, "x"])
def test_gguf_heads_are_a_count(tmp_path: Path, heads: object) -> None:
    metadata = metadata_of(tiny_config("llama3"), "llama") | {"llama.attention.head_count": heads}
    file = write_gguf(tmp_path / "a.gguf", metadata, {"token_embd.weight": ("F32", (4, 2), bytes(32))})
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count"):
        config_of_gguf(file)
