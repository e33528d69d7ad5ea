"""Models whose checkpoints pack a known model's tensors otherwise: the same parameters, bit for bit."""

import dataclasses
import importlib.util
import json
import logging
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import ConfigError
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.loading.layout.parameters import Parameters
from palladio.model.loading.layout.tensor_layout import TensorLayout
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, load, numbers
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config, write_json

FILE = "model.safetensors"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
Tensors = dict[str, np.ndarray]
_NAMES = {
    "model.tok_embeddings.": "model.embed_tokens.",
    "output.": "lm_head.",
    "attention.wo.": "self_attn.o_proj.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
}


def as_llama(stored: Tensors, config: dict[str, Any]) -> Tensors:
    """InternLM 2's tensors: of each key head its queries, its key and its value are beside each other."""
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    H, found = config["hidden_size"] // N, {}
    for name, array in stored.items():
        if "wqkv" in name:
            inputs = array.shape[1:]  # of a bias, none
            heads = array.reshape(K, N // K + 2, H, *inputs)
            part = name.replace("attention.wqkv", "self_attn.{}_proj")
            found[part.format("q")] = heads[:, :-2].reshape(N * H, *inputs)
            found[part.format("k")], found[part.format("v")] = (heads[:, i].reshape(K * H, *inputs) for i in (-2, -1))
        else:
            ours = next((name.replace(*pair) for pair in _NAMES.items() if pair[0] in name), name)
            found[ours] = array
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def differing(path: str, same: str, num_devices: int) -> list[str]:
    """Names of the parameters that differ between two checkpoints."""
    mesh = make_mesh(num_devices)
    (ours, found), (theirs, expected) = load(Path(path), mesh=mesh), load(Path(same), mesh=mesh)
    assert ours.layers == theirs.layers
    got, wanted = numbers(found), numbers(expected)
    assert got.keys() == wanted.keys()
    return [name for name, array in wanted.items() if not np.array_equal(got[name], array)]


def internlm2_and_llama(folder: Path, *, has_bias: bool) -> tuple[Path, Path]:
    """The same model twice: InternLM 2's bias is that of attention."""
    config = tiny_config("internlm2", bias=has_bias)
    path, same = make_checkpoint(folder / "internlm2", "internlm2", bias=has_bias), folder / "llama"
    same.mkdir()
    renamed = {key: value for key, value in config.items() if key != "bias"}
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": has_bias}
    write_json(same / "config.json", renamed | llama)
    save_file(as_llama(load_file(path / FILE), config), same / FILE, metadata={"format": "pt"})
    return path, same


@pytest.mark.parametrize("has_bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_internlm2_is_llama_in_other_tensors(has_bias: bool, tmp_path: Path) -> None:
    """With 4 devices each key head is on two."""
    path, same = internlm2_and_llama(tmp_path, has_bias=has_bias)
    assert differing(str(path), str(same), 1) == []
    assert call_with_devices(__name__, "differing", str(path), str(same), 4) == []


def test_mimo_is_qwen2_with_layers_that_are_not_used(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    path, same = make_checkpoint(tmp_path / "mimo", "mimo"), tmp_path / "qwen2"
    same.mkdir()
    write_json(same / "config.json", tiny_config("qwen2"))
    stored = {name: array for name, array in load_file(path / FILE).items() if ".mtp_layers." not in name}
    save_file(stored, same / FILE, metadata={"format": "pt"})
    assert differing(str(path), str(same), 1) == []
    assert "further ahead (num_nextn_predict_layers); they are not used. Ignored tensors: 2" in caplog.text


@pytest.mark.slow  # test_internlm2_is_llama_in_other_tensors has its tensors
@needs_torch
@pytest.mark.torch
def test_logits_of_internlm2_with_biases(tmp_path: Path) -> None:
    from tests.model import hf_oracle

    path, same = internlm2_and_llama(tmp_path, has_bias=True)
    chosen = prompts()[4:6]
    found = Driver(*load(path), num_sequences=2).step(chosen)
    wanted, _ = hf_oracle.run(same, chosen, 1)
    for b, expected in enumerate(wanted):
        np.testing.assert_allclose(found[b], expected, atol=1e-4, rtol=0)


def with_images(folder: Path, family: str, architecture: str, prefix: str | None, **outer: Any) -> Path:
    """A checkpoint with a vision tower. Args: prefix: of the text model's tensors and its config; None: it has none."""
    make_checkpoint(folder, family)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = {"architectures": [architecture], "vision_config": {"hidden_size": 8}, **outer}
    stored = load_file(folder / FILE)
    if prefix is not None:
        stored = {name.replace("model.", prefix, 1): array for name, array in stored.items()}
        config = {"text_config": config, "eos_token_id": 2}
    write_json(folder / "config.json", config | whole)
    save_file(stored | {"visual.blocks.0.norm1.weight": np.ones(8, np.float32)}, folder / FILE)
    return folder


_MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}


@pytest.mark.parametrize(
    ("family", "architecture", "prefix", "outer"),
    [
        ("mistral", "Mistral3ForConditionalGeneration", "language_model.model.", {}),
        ("ministral3", "Mistral3ForConditionalGeneration", "language_model.model.", {}),
        ("qwen2", "Qwen2VLForConditionalGeneration", None, _MROPE),
        ("qwen2", "Qwen2_5_VLForConditionalGeneration", None, _MROPE),
        ("qwen2_tied", "Qwen2_5_VLForConditionalGeneration", "model.language_model.", {"tie_word_embeddings": True}),
        ("qwen3", "Qwen3VLForConditionalGeneration", "model.language_model.", {}),
    ],
)
def test_the_text_model_of_one_that_takes_images(
    family: str, architecture: str, prefix: str | None, outer: dict[str, Any], tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING)
    plain, model = load(make_checkpoint(tmp_path / "plain", family))
    config, nested = load(with_images(tmp_path / "nested", family, architecture, prefix, **outer))

    def without_axes(config: ModelConfig) -> Any:  # texts have one position, whichever frequency goes by which axis
        ropes = [
            layer.attention.rope and dataclasses.asdict(layer.attention.rope) | {"axes": ()} for layer in config.layers
        ]
        return ropes, [layer.with_attention(rope=None) for layer in config.layers], config.norm, config.vocab_size

    assert without_axes(config) == without_axes(plain)
    wanted, got = numbers(model), numbers(nested)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)
    assert "served for text only; images and sound are not supported. Ignored tensors: 1 of visual" in caplog.text


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("internlm3", {"bias": False}, "qkv_bias True differs from bias False"),
        ("ministral", {"sliding_window": None}, "sliding_window is missing"),
        (
            "ministral3",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_scaling and rope_parameters.llama_4_scaling_beta are not supported together",
        ),
    ],
)
def test_what_is_not_supported_is_refused(family: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_hf(tiny_config(family, **overrides))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "sizes", "keys", "billions"),
    [
        (
            "GraniteMoeForCausalLM",
            (1536, 512, 32, 24, 8, 49155),
            {"num_local_experts": 40, "num_experts_per_tok": 8, "tie_word_embeddings": True},
            3.30,
        ),
        ("MiniMaxM2ForCausalLM", (3072, 1536, 62, 48, 8, 200064), {"rotary_dim": 64}, 228.7),
        ("MinistralForCausalLM", (4096, 12288, 36, 32, 8, 131072), {"head_dim": 128, "sliding_window": 32768}, 8.02),
        ("Ministral3ForCausalLM", (4096, 14336, 34, 32, 8, 131072), {}, 8.49),
        ("NemotronForCausalLM", (3072, 9216, 32, 24, 8, 256000), {"head_dim": 128}, 4.19),
        ("InternLM2ForCausalLM", (4096, 14336, 32, 32, 8, 92544), {}, 7.74),
        ("InternLM3ForCausalLM", (4096, 10240, 48, 32, 2, 128512), {}, 8.80),
    ],
)
def test_published_sizes(architecture: str, sizes: tuple[int, ...], keys: dict[str, Any], billions: float) -> None:
    """Parameters of the published models; what config.json leaves out is the family's default."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    hf = dict(zip((*names, "vocab_size"), sizes, strict=True)) | keys
    config = ModelConfig.from_hf({"architectures": [architecture], **hf})
    parameters = Parameters.of(TensorLayout.of(config, 1), jnp.bfloat16, make_mesh(1))
    count = sum(math.prod(param.shape) for _, param in parameters.by_path.values())
    assert count / 1e9 == pytest.approx(billions, rel=0.005)
