"""Rope parameters, wherever config.json or an override has them: what transformers makes of the same."""

import dataclasses
import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.layers.rope import attention_factor, inverse_frequencies, rotation
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config, write_json

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")

PLAIN = {"rope_type": "default", "rope_theta": 5e5}  # as transformers 5 saves what is not scaled
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TOP = 10000.0  # rope_theta beside the objects
CASES: dict[str, dict[str, Any]] = {
    "yarn": {"rope_theta": TOP, "rope_parameters": PLAIN, "rope_scaling": YARN},
    "yarn, the other order": {"rope_scaling": YARN, "rope_parameters": PLAIN, "rope_theta": TOP},
    "linear": {"rope_parameters": PLAIN, "rope_scaling": LINEAR},
    "linear, by its old name": {"rope_parameters": PLAIN, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "both names of the kind": {"rope_scaling": {"type": "linear", **YARN}},
    "llama3": {"rope_scaling": LLAMA3, "rope_parameters": PLAIN, "rope_theta": 2e5},
    "unscaled over yarn": {"rope_parameters": {**YARN, "rope_theta": TOP}, "rope_scaling": {"rope_type": "default"}},
    "llama3 over yarn": {"rope_parameters": {**YARN, "rope_theta": TOP, "truncate": False}, "rope_scaling": LLAMA3},
    "theta within": {"rope_theta": TOP, "rope_parameters": PLAIN, "rope_scaling": {**YARN, "rope_theta": 7e4}},
    "theta nowhere else": {"rope_parameters": PLAIN, "rope_scaling": YARN},
    "theta in both places": {"rope_theta": TOP, "rope_parameters": PLAIN},
    "theta beside": {"rope_theta": 3e5, "rope_parameters": {"rope_type": "default"}},
    "empty": {"rope_parameters": {**YARN, "rope_theta": TOP}, "rope_scaling": {}},
    "null": {"rope_parameters": {**YARN, "rope_theta": TOP}, "rope_scaling": None},
    "no kind": {"rope_parameters": {**YARN, "rope_theta": TOP}, "rope_scaling": {"factor": 4.0}},
    "length beside": {"rope_parameters": PLAIN, "rope_scaling": YARN, "original_max_position_embeddings": 64},
    "no length": {"rope_parameters": PLAIN, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "factor from lengths": {"rope_parameters": PLAIN, "rope_scaling": {**YARN, "factor": None}},
    "all of yarn": {
        "rope_parameters": PLAIN,
        "rope_scaling": {**YARN, "beta_fast": 20, "beta_slow": 2, "mscale": 1.5, "mscale_all_dim": 1.0},
    },
    "own attention factor": {"rope_parameters": PLAIN, "rope_scaling": {**YARN, "attention_factor": 1.25}},
    "untruncated": {"rope_parameters": PLAIN, "rope_scaling": {**YARN, "truncate": False}},
}
# The file, the override, and a file that says both.
OVERRIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "yarn is switched on": (
        {"rope_theta": TOP, "rope_parameters": PLAIN},
        {"rope_scaling": YARN},
        {"rope_theta": TOP, "rope_scaling": YARN},
    ),
    "yarn instead of linear": (
        {"rope_theta": TOP, "rope_scaling": LINEAR},
        {"rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}},
        {"rope_theta": TOP, "rope_scaling": YARN},
    ),
    "what belonged to another kind": (
        {"rope_theta": TOP, "rope_scaling": {**LLAMA3, "attention_factor": 9.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_theta": TOP, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ),
    "new name over old": (
        {"rope_theta": TOP, "rope_scaling": LINEAR},
        {"rope_parameters": {**YARN, "rope_theta": 7e4}},
        {"rope_parameters": {**YARN, "rope_theta": 7e4}},
    ),
    "one value": (
        {"rope_theta": TOP, "rope_scaling": YARN},
        {"rope_scaling": {"factor": 8.0}},
        {"rope_theta": TOP, "rope_scaling": {**YARN, "factor": 8.0}},
    ),
    "theta beside": ({"rope_parameters": PLAIN}, {"rope_theta": 3e5}, {"rope_theta": 3e5}),
    "theta within": (
        {"rope_theta": TOP, "rope_parameters": {**YARN, "rope_theta": TOP}},
        {"rope_parameters": {"rope_theta": 3e5}},
        {"rope_parameters": {**YARN, "rope_theta": 3e5}},
    ),
    "length within": (
        {"rope_theta": TOP, "rope_scaling": YARN, "original_max_position_embeddings": 64},
        {"rope_scaling": {"original_max_position_embeddings": 16}},
        {"rope_theta": TOP, "rope_scaling": {**YARN, "original_max_position_embeddings": 16}},
    ),
}


def hf_config(values: dict[str, Any], family: str = "qwen2") -> dict[str, Any]:
    """A config.json with its keys in the order of `values`."""
    rest = {key: value for key, value in tiny_config(family).items() if not key.startswith("rope_")}
    return rest | values


def ours(config: dict[str, Any]) -> tuple[np.ndarray, float]:
    read = ModelConfig.from_hf(config)
    (rope,) = read.ropes
    return inverse_frequencies(rope, read.head_size), attention_factor(rope)


def theirs(folder: Path, config: dict[str, Any]) -> tuple[np.ndarray, float]:
    from transformers import AutoConfig
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    write_json(folder / "config.json", config)
    made = Qwen2RotaryEmbedding(AutoConfig.from_pretrained(folder))
    return made.inv_freq.numpy(), made.attention_scaling


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_frequencies_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    config = hf_config(CASES[case])
    wanted, wanted_factor = theirs(tmp_path, config)
    found, factor = ours(config)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert factor == pytest.approx(wanted_factor)


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("case", OVERRIDDEN)
def test_an_override_is_read_as_if_the_file_said_so(case: str, tmp_path: Path) -> None:
    file, override, whole = OVERRIDDEN[case]
    write_json(tmp_path / "config.json", hf_config(file))
    config, _ = read_model_dir(tmp_path, override)
    found, factor = ours(config)
    wanted, wanted_factor = theirs(tmp_path, hf_config(whole))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert factor == pytest.approx(wanted_factor)


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("by", ["file", pytest.param("override", marks=pytest.mark.slow)])
def test_logits_with_both_objects(by: str, tmp_path: Path) -> None:
    """YaRN switched on in a checkpoint that transformers 5 saved, as Qwen's model cards say."""
    from tests.model import hf_oracle

    path = make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1)
    without = {"num_hidden_layers": 1, "max_position_embeddings": 32, "rope_theta": TOP, "rope_parameters": PLAIN}
    whole = hf_config({**without, "rope_scaling": YARN}, "qwen3")
    write_json(path / "config.json", whole if by == "file" else hf_config(without, "qwen3"))
    config, model = load(path, {} if by == "file" else {"rope_scaling": YARN})
    assert config.max_position_embeddings == 128
    chosen = prompts()[-2:]
    found = Driver(config, model, len(chosen)).step(chosen)
    write_json(path / "config.json", whole)
    wanted, _ = hf_oracle.run(path, chosen, 1)
    for b, expected in enumerate(wanted):
        np.testing.assert_allclose(found[b], expected, atol=1e-4, rtol=0)


MROPE = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 2, 2]}


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_with_three_axes_are_those_of_transformers(interleaved: bool) -> None:
    import torch
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as contiguous
    from transformers.models.qwen3_vl import modeling_qwen3_vl as in_turns

    head_size, positions = 16, np.random.default_rng(0).integers(0, 90, (3, 7))
    config = hf_config({"rope_scaling": MROPE | ({"mrope_interleaved": True} if interleaved else {})})
    rope = dataclasses.replace(ModelConfig.from_hf(config | {"head_dim": head_size}).ropes[0])
    cos, sin = rotation(rope.checked(head_size), head_size, jnp.asarray(positions))
    sizes = {"head_dim": head_size, "hidden_size": 64, "num_attention_heads": 4, "rope_parameters": MROPE}
    if interleaved:
        theirs = in_turns.Qwen3VLTextRotaryEmbedding(in_turns.Qwen3VLTextConfig(**sizes))
    else:
        theirs = contiguous.Qwen2_5_VLRotaryEmbedding(contiguous.Qwen2_5_VLTextConfig(**sizes))
    wanted_cos, wanted_sin = theirs(torch.zeros(1), torch.tensor(positions)[:, None])
    np.testing.assert_allclose(cos, wanted_cos[0, :, : head_size // 2], atol=1e-5)
    np.testing.assert_allclose(sin, wanted_sin[0, :, : head_size // 2], atol=1e-5)
    same = jnp.broadcast_to(positions[0], (3, 7))
    plain = rotation(rope, head_size, jnp.asarray(positions[0]))
    for found, wanted in zip(rotation(rope, head_size, same), plain, strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg="axes that are equal turn as one position does")


def test_sections_of_axes_that_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    def read(**changes: Any) -> ModelConfig:
        return ModelConfig.from_hf(hf_config({"head_dim": 16, "rope_scaling": MROPE | changes}))

    assert len(read(type="mrope").ropes[0].axes) == 8
    assert not caplog.messages
    for changes, words in (
        ({"mrope_section": [4, 2]}, r"mrope_section must add up to 8 .* found 6"),
        ({"mrope_section": [4, 2, 2.5]}, "mrope_section must be a whole number of at least 1, found 2.5"),
        ({"mrope_section": 8}, "mrope_section must be a list of whole numbers, found 8"),
        ({"mrope_section": [2, 4, 2], "mrope_interleaved": True}, "axis 1 has too many frequencies to take turns"),
    ):
        with pytest.raises(ValueError, match=words):
            read(**changes)


def test_a_theta_that_is_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert [rope.theta for rope in ModelConfig.from_hf(hf_config(CASES["theta nowhere else"])).ropes] == [10000.0]
    (told,) = caplog.messages
    assert "rope_theta 500000.0 is ignored and 10000.0 is used" in told
    assert 'add "rope_theta": 500000.0 to rope_scaling' in told
    caplog.clear()
    ModelConfig.from_hf(hf_config({"rope_theta": 5e5, "rope_parameters": PLAIN, "rope_scaling": YARN}))
    assert not caplog.messages


def test_a_scaling_without_a_kind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ModelConfig.from_hf(hf_config({"rope_scaling": {"factor": 4.0}}))
    assert caplog.messages == ["config.json: factor has no effect because rope_scaling.rope_type is default or missing"]


def test_kinds_that_are_not_supported_are_refused_in_either_object() -> None:
    for kind in ("ntk", "proportional"):
        with pytest.raises(ValueError, match=rf"rope_scaling\.rope_type: '{kind}' is not supported"):
            ModelConfig.from_hf(hf_config({"rope_parameters": PLAIN, "rope_scaling": {"type": kind, "factor": 2.0}}))
        with pytest.raises(ValueError, match=rf"rope_parameters\.rope_type: '{kind}' is not supported"):
            ModelConfig.from_hf(hf_config({"rope_parameters": {"rope_type": kind, "factor": 2.0}}))


@pytest.mark.parametrize(
    ("file", "override", "key", "value"),
    [
        ({"dtype": "bfloat16"}, {"torch_dtype": "float16"}, "dtype", "float16"),
        ({"torch_dtype": "bfloat16"}, {"dtype": "float16"}, "dtype", "float16"),
        ({"dtype": None, "torch_dtype": "float16"}, {}, "dtype", "float16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, {}, "dtype", "bfloat16"),
    ],
)
def test_names_of_the_dtype(file: dict, override: dict, key: str, value: str, tmp_path: Path) -> None:
    base = {key: value for key, value in tiny_config("qwen2").items() if key != "torch_dtype"}
    (tmp_path / "config.json").write_text(json.dumps(base | file))
    assert ModelConfig.from_hf(*read_model_dir(tmp_path, override)).dtype == value


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral"])
@pytest.mark.parametrize("names", [("num_experts",), ("num_local_experts",), ("num_experts", "num_local_experts")])
def test_names_of_the_number_of_experts(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    from transformers import AutoConfig

    base = {k: v for k, v in tiny_config(family).items() if k not in ("num_experts", "num_local_experts")}
    config = base | {name: 6 + number for number, name in enumerate(names)}
    write_json(tmp_path / "config.json", config)
    read = AutoConfig.from_pretrained(tmp_path)
    found = ModelConfig.from_hf(config).experts.num_experts
    if (family, names) == ("qwen2_moe", ("num_local_experts",)):  # which transformers does not look at
        assert found == 6
    else:
        assert found == read.num_experts
    for name in ("num_experts", "num_local_experts"):
        overridden, _ = read_model_dir(tmp_path, {name: 5})
        assert ModelConfig.from_hf(overridden).experts.num_experts == 5
