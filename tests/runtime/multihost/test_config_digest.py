"""What hosts compare: the same for what may differ between them, another one for what may not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.multihost.config_digest import config_digest
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_tokenizer(make_checkpoint(tmp_path_factory.mktemp("model"), "qwen3"), vocab_size=384)


def passport_of(path: Path, **flags: Any) -> dict[str, str]:
    return dict(config_digest(EngineConfig.from_flags({"model_path": str(path), **flags})))


def test_paths_ranks_and_waits_may_differ(model, tmp_path):
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    hosts = {"nnodes": 2, "dist_init_addr": "10.0.0.1:8478"}
    one = passport_of(model, **hosts, node_rank=0, random_seed=1, compilation_cache_dir="/a", dist_coordinator_port=9)
    other = passport_of(copy, **hosts, node_rank=1, random_seed=2, watchdog_timeout=3.0, decode_log_interval=7)
    assert one == other


def test_every_other_flag_is_compared(model):
    one = passport_of(model)
    for flags in (
        {"page_size": 8},
        {"tp_size": 8},
        {"dp_size": 2},
        {"dtype": "float32"},
        {"kv_cache_dtype": "float16"},
    ):
        (name,) = flags
        differing = [key for key, value in passport_of(model, **flags).items() if one[key] != value]
        assert differing == ["--" + name.replace("_", "-")]


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_byte_of_the_model_counts(model, tmp_path, file):
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    content = bytearray((copy / file).read_bytes())
    content[-3] ^= 1
    (copy / file).write_bytes(content)
    assert passport_of(copy)["the model"] != passport_of(model)["the model"]


def test_weights_that_are_not_read_do_not_count(model, tmp_path):
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    assert passport_of(copy, load_format="dummy") == passport_of(model, load_format="dummy")
