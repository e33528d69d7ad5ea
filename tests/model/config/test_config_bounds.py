"""Numbers of config.json that no model has: an error at once that names the key, whatever the number is."""

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palladio.model.base.errors import ConfigError
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.layers.rope import attention_factor, inverse_frequencies
from palladio.model.loading.layout.tensor_layout import TensorLayout
from tests.tiny_model import FAMILIES, tiny_config

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
EXPERT_SIZES = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")
COUNTS = ("num_experts_per_tok", "decoder_sparse_step", "sliding_window", "max_window_layers")
NUMBERS = ("rms_norm_eps", "rope_theta")
IDS = ("eos_token_id", "bos_token_id")
IN_ROPE = (
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)
NO_NUMBERS: tuple[Any, ...] = ("12", "", True, False, [4], [], {}, {"a": 1}, math.nan, math.inf, -math.inf)
HUGE = (10**6, 2**31, 10**9, 10**12, 2**63, 10**40, 10**400, 1e300)
SMALL = (0, -1, -(10**12), 0.5, -0.0, 1.0, 1e-300)


def read(family: str, **overrides: Any) -> ModelConfig:
    return ModelConfig.from_hf(tiny_config(family, **overrides))


@pytest.mark.parametrize("value", [10**6, 10**9, 10**12, pytest.param(10**5000, id="of 5001 digits")])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_no_model_has_are_named(key: str, value: int) -> None:
    if key in ("vocab_size", "intermediate_size", "max_position_embeddings") and value == 10**6:
        assert read("qwen3", **{key: value})
        return
    with pytest.raises(ConfigError, match=rf"{key} must be at most \d+") as error:
        read("qwen3", **{key: value})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("value", [10**9, 10**12])
@pytest.mark.parametrize("key", EXPERT_SIZES)
def test_experts_that_no_model_has_are_named(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} must be at most .* found {value}"):
        read("qwen2_moe", **{key: value})


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 0.5, 1.0])
@pytest.mark.parametrize("key", SIZES)
def test_what_is_no_size_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key} must be a whole number of at least 1"):
        read("qwen3", **{key: value})


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1.5, pytest.param(10**400, id="of 401 digits"), 1e300])
@pytest.mark.parametrize("key", NUMBERS)
def test_what_is_no_number_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        read("qwen3", **{key: value})


@pytest.mark.parametrize("value", ["2", True, 2**31, 10**40, 2.0, [2, 2.0], {}])
@pytest.mark.parametrize("key", IDS)
def test_what_is_no_token_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        read("qwen3", **{key: value})


def test_a_context_that_is_scaled_beyond_all_measure() -> None:
    yarn = {"rope_type": "yarn", "factor": 1e12, "original_max_position_embeddings": 4096}
    with pytest.raises(ConfigError, match=r"rope_scaling\.factor .* × 4096 tokens exceeds the maximum"):
        read("qwen3", rope_scaling=yarn)


def test_heads_that_are_too_large_though_nobody_says_so() -> None:
    with pytest.raises(ConfigError, match=r"head size 65536 \(hidden_size 131072 / num_attention_heads 2"):
        read("qwen2", hidden_size=1 << 17, num_attention_heads=2, num_key_value_heads=2)


@pytest.mark.parametrize("block", [[True, True], [0, 1], [1, 10**12], [128], "128", [128.5, 128]])
def test_blocks_of_a_quantized_matrix(block: Any) -> None:
    with pytest.raises(ConfigError, match=r"weight_block_size must be two numbers in 1 … 65536"):
        read("qwen3", quantization_config={"quant_method": "fp8", "weight_block_size": block})


def test_a_million_layers_in_a_file_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("qwen2", num_hidden_layers=10**6)))
    start = time.monotonic()
    with pytest.raises(ConfigError, match="num_hidden_layers must be at most 512"):
        ModelConfig.from_hf(*read_model_dir(tmp_path))
    assert time.monotonic() - start < 5


VALUES = st.one_of(
    st.sampled_from([*NO_NUMBERS, *HUGE, *SMALL, None]),
    st.integers(-(2**70), 2**70),
    st.integers(0, 4096),
    st.floats(),
)
PLACES = st.one_of(
    st.tuples(st.just(""), st.sampled_from([*SIZES, *EXPERT_SIZES, *COUNTS, *NUMBERS, *IDS, "layer_types"])),
    st.tuples(st.sampled_from(["yarn", "llama3", "linear", "default"]), st.sampled_from(IN_ROPE)),
    st.tuples(st.just(""), st.sampled_from(["mlp_only_layers", "num_local_experts"])),
    st.tuples(st.just(""), st.just("original_max_position_embeddings")),
)


@given(st.sampled_from(sorted(FAMILIES)), st.lists(st.tuples(PLACES, VALUES), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_in_any_place_is_read_or_refused(family: str, changes: list[tuple[tuple[str, str], Any]]) -> None:
    """With nothing but a ConfigError, and soon; what is read can be laid out, and its frequencies are numbers."""
    hf = tiny_config(family)
    for (kind, key), value in changes:
        if not kind:
            hf[key] = value
            continue
        base = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        hf["rope_scaling"] = base | {key: value}
    start = time.monotonic()
    with contextlib.suppress(ConfigError):
        config = ModelConfig.from_hf(hf)
        TensorLayout.of(config, 4)
        for rope in config.ropes:
            assert math.isfinite(float(inverse_frequencies(rope, config.head_size).sum()))
            assert math.isfinite(attention_factor(rope))
    assert time.monotonic() - start < 5
