"""On a CPU a small GGUF file's weights become dense, and say so; what somebody has chosen stays."""

from pathlib import Path

import pytest

from palladio.model.config.config import ModelConfig
from palladio.model.weights.kinds import WeightKinds
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.small_gguf import MAX_BYTES, as_multiplied
from palladio.runtime.interface.config.config import EngineConfig
from tests.model.gguf_files import as_gguf
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import make_checkpoint, tiny_config

GROUPS = ModelConfig.from_hf(tiny_config("qwen3")).with_quantization("int4")
CHANNELS = ModelConfig.from_hf(tiny_config("qwen3")).with_quantization("int8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_scales_of_groups_become_dense_on_a_cpu(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="palladio.engine"):
        assert as_multiplied(GROUPS, file, "cpu", None).weight_kinds == WeightKinds()
    (line,) = caplog.messages
    assert line.startswith(
        "Weights of small.gguf (0 MB; int4 W4A16, a scale per 128 inputs) become dense while they load"
    )
    assert "--quantization gguf keeps" in line


def test_everything_else_keeps_its_bits(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = file.with_name("large.gguf")
    with large.open("wb") as out:
        out.truncate(MAX_BYTES + 1)
    with caplog.at_level("INFO", logger="palladio.engine"):
        for model, path, platform, flag in (
            (GROUPS, file, "cpu", "gguf"),
            (GROUPS, file, "gpu", None),
            (GROUPS, file.parent, "cpu", None),
            (GROUPS, large, "cpu", None),
            (CHANNELS, file, "cpu", None),
        ):
            assert as_multiplied(model, path, platform, flag) is model
    assert caplog.messages == []


def test_the_plan_of_an_engine_has_dense_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    file = as_gguf(
        make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, head_dim=16, **sizes), "qwen3", lambda _: "Q4_1"
    )
    flags = {**FLAGS, "model_path": str(file), "skip_tokenizer_init": True, "load_format": "auto"}
    dense, kept = (
        EnginePlan.of(EngineConfig.from_flags({**flags, "quantization": quantization}))
        for quantization in (None, "gguf")
    )
    assert [kind.group for kind in kept.model.weight_kinds.all] == [32]
    assert dense.model.weight_kinds.all == ()
