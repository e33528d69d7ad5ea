"""Text of models that have a text model as one of their parts: whole models of transformers, saved, and served."""

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import ConfigError
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.config import ModelConfig
from palladio.model.config.nested_config import TEXT_MODELS
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, greedy, load, numbers
from tests.model.make_goldens import prompts
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, random_weight, tiny_config, write_json

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
NUM_TOKENS = 48
FILE = "model.safetensors"
THINKER = "Qwen3OmniMoeThinkerForConditionalGeneration"

_PATCHES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_CLIP = {"model_type": "clip_vision_model", **_PATCHES, "image_size": 16, "patch_size": 4, "projection_dim": 16}
_SIGLIP = {"model_type": "siglip_vision_model", **_PATCHES, "image_size": 16, "patch_size": 4}
_BLOCKS = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48}
_QWEN_VISION = {**_BLOCKS, "patch_size": 4, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
_AUDIO = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "d_model": 8}
_AUDIO |= {"output_dim": 48, "downsample_hidden_size": 4}
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_MROPE = {"rope_theta": None, "rope_parameters": _ROPE}
_OF_GLM4V = {**_MROPE, "head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 1}

CASES: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "cohere2": ("Cohere2VisionForConditionalGeneration", "cohere2", "cohere2", {}, _SIGLIP),
    "glm4v": ("Glm4vForConditionalGeneration", "glm4", "glm4v_text", _OF_GLM4V, _BLOCKS),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", "glm4_moe", "glm4v_moe_text", {**_MROPE}, _BLOCKS),
    "internvl_qwen3": ("InternVLForConditionalGeneration", "qwen3", "qwen3", {}, {**_PATCHES, "image_size": [16, 16]}),
    "kimi_k25": ("Kimi_K25ForConditionalGeneration", "kimi_k2", "kimi_k2", {}, _PATCHES),
    "llava_llama": ("LlavaForConditionalGeneration", "llama_biased", "llama", {}, _CLIP),
    "llava_next_mistral": ("LlavaNextForConditionalGeneration", "mistral", "mistral", {}, _CLIP),
    "llava_onevision_qwen2": ("LlavaOnevisionForConditionalGeneration", "qwen2", "qwen2", {}, _SIGLIP),
    "mistral3_mistral4": (
        "Mistral3ForConditionalGeneration",
        "mistral4",
        "mistral4",
        {},
        {"model_type": "pixtral", **_PATCHES, "head_dim": 8, "image_size": 32, "patch_size": 16},
    ),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_moe", "qwen3_vl_moe_text", _MROPE, _QWEN_VISION),
    "qwen3_omni": (THINKER, "qwen3_moe", "qwen3_omni_moe_text", _MROPE, _QWEN_VISION),
}
"""The class of transformers, the tiny family of the text model, its model_type and its other keys, and a tower."""


def save_wrapper(folder: Path, case: str, *, is_tied: bool) -> Any:
    """Write a whole model, every parameter and stored buffer random, as transformers does; return it."""
    import torch
    import transformers

    torch.set_num_threads(1)
    architecture, family, kind, keys, vision = CASES[case]
    text = {**tiny_config(family), "model_type": kind, "tie_word_embeddings": is_tied, **keys}
    others = ("architectures", "torch_dtype")
    text = {key: value for key, value in text.items() if value is not None and key not in others}
    outer: dict[str, Any] = {"text_config": text, "vision_config": vision, "tie_word_embeddings": is_tied}
    if architecture == THINKER:
        outer["audio_config"] = _AUDIO
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**outer)
    config._attn_implementation = "eager"
    model = model_class(config).eval().to(torch.float32)
    with torch.no_grad():
        stored = model.state_dict()
        for name, tensor in stored.items():
            if tensor.is_floating_point() and not (is_tied and name == "lm_head.weight"):
                tensor.copy_(torch.from_numpy(random_weight(name, tuple(tensor.shape))))
    model.save_pretrained(folder)
    return model


def answers(model: Any, chosen: list[list[int]], count: int) -> tuple[list[np.ndarray], list[list[int]]]:
    """Logits of the prompts, and greedy tokens, computed without a cache."""
    import torch

    logits, tokens = [], []
    with torch.inference_mode():
        for prompt in chosen:
            ids = list(prompt)
            logits.append(model(torch.tensor([ids]), use_cache=False).logits[0].numpy())
            for _ in range(count):
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            tokens.append(ids[len(prompt) :])
    return logits, tokens


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_the_whole_model(case: str, is_tied: bool, tmp_path: Path, caplog: Any) -> None:
    """Prompt logits, greedy tokens, and a prompt in two chunks."""
    caplog.set_level(logging.WARNING)
    theirs = save_wrapper(tmp_path, case, is_tied=is_tied)
    if case == "qwen3_omni":
        as_part(tmp_path)
    chosen = prompts()[5:8]
    wanted, tokens = answers(theirs, chosen, NUM_TOKENS)
    config, model = load(tmp_path)
    assert config.tie_word_embeddings is is_tied
    ours = Driver(config, model, len(chosen)).step(chosen)
    for b, expected in enumerate(wanted):
        np.testing.assert_allclose(ours[b], expected, atol=1e-4, rtol=0)
    _, found = greedy(Driver(config, model, len(chosen)), chosen, NUM_TOKENS)
    assert found == tokens
    driver = Driver(config, model, len(chosen))
    driver.step([prompt[:17] for prompt in chosen])
    rest = driver.step([prompt[17:] for prompt in chosen])
    for b, part in rest.items():
        np.testing.assert_allclose(part, ours[b][17:], atol=2e-5, rtol=0)
    (told,) = [message for message in caplog.messages if "served for text only" in message]
    assert "\n" not in told
    assert call_with_devices(__name__, "largest_gap", str(tmp_path), 2) < 1e-4


def largest_gap(path: str, num_devices: int) -> float:
    """The largest difference of a logit between one device and several."""
    from palladio.model.base.sharding import make_mesh

    results = []
    for count in (1, num_devices):
        mesh = make_mesh(count)
        config, model = load(Path(path), mesh=mesh)
        results.append(Driver(model.config, model, 1, mesh=mesh).step([prompts()[7]])[0][:, : config.vocab_size])
    return float(np.abs(results[0] - results[1]).max())


def as_part(folder: Path) -> None:
    """Make a whole Qwen3-Omni of its thinker, with tensors of what speaks."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe"}
    write_json(folder / "config.json", {**whole, "thinker_config": config, "torch_dtype": "float32"})
    stored = {f"thinker.{name}": array for name, array in load_file(folder / FILE).items()}
    others = {"talker.model.norm.weight": np.ones(8, np.float32), "code2wav.bias": np.ones(8, np.float32)}
    save_file(stored | others, folder / FILE, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("architecture", "family", "kind", "prefix"),
    [
        ("LlavaForConditionalGeneration", "llama_biased", "llama", "language_model.model."),
        ("InternVLForConditionalGeneration", "qwen3", "qwen3", "model.language_model."),
        ("KimiK25ForConditionalGeneration", "kimi_k2", "kimi_k2", "language_model.model."),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_moe", "qwen3_omni_moe_text", "thinker.model."),
    ],
)
def test_parameters_are_those_of_the_text_model_alone(
    architecture: str, family: str, kind: str, prefix: str, tmp_path: Path
) -> None:
    """Under the prefixes of published files, older ones included."""
    _, plain = load(make_checkpoint(tmp_path / "plain", family))
    _, nested = load(as_wrapper(tmp_path / "nested", architecture, family, kind, prefix))
    wanted, found = numbers(plain), numbers(nested)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("has_inputs_first", [True, False])
def test_experts_of_qwen3_vl_are_read_either_way(has_inputs_first: bool, tmp_path: Path) -> None:
    """As they are published, inputs first, and as transformers 5 writes them."""
    kind, prefix = "qwen3_vl_moe_text", "model.language_model."
    _, plain = load(make_checkpoint(tmp_path / "plain", "qwen3_moe"))
    path = as_wrapper(tmp_path / "nested", "Qwen3VLMoeForConditionalGeneration", "qwen3_moe", kind, prefix)
    stored = load_file(path / FILE)
    for layer in range(2):
        part = f"{prefix}layers.{layer}.mlp.experts"
        gate, up, down = (
            np.stack([stored.pop(f"{part}.{number}.{name}_proj.weight") for number in range(8)])
            for name in ("gate", "up", "down")
        )
        for name, stack in (("gate_up_proj", np.concatenate([gate, up], axis=1)), ("down_proj", down)):
            stored[f"{part}.{name}"] = np.ascontiguousarray(stack.swapaxes(1, 2) if has_inputs_first else stack)
    save_file(stored, path / FILE)
    wanted, found = numbers(plain), numbers(load(path)[1])
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def as_wrapper(folder: Path, architecture: str, family: str, kind: str, prefix: str, **outer: Any) -> Path:
    """A checkpoint of a tiny text model as a part of a larger one."""
    text = {**tiny_config(family), "model_type": kind}
    make_checkpoint(folder, family)
    part = {"text_config": text}
    part = {"thinker_config": part} if prefix.startswith("thinker.") else part
    write_json(folder / "config.json", {"architectures": [architecture], "torch_dtype": "float32", **part, **outer})
    head = "thinker." if prefix.startswith("thinker.") else "language_model." * prefix.startswith("language_model.")
    stored = {
        name.replace("model.", prefix, 1) if name.startswith("model.") else f"{head}{name}": array
        for name, array in load_file(folder / FILE).items()
    }
    towers = {f"{tower}.blocks.0.norm.weight": np.ones(8, np.float32) for tower in ("visual", "audio_tower", "talker")}
    save_file(stored | towers | {"image_newline": np.ones(48, np.float32)}, folder / FILE)
    return folder


@pytest.mark.parametrize("ignored", [["visual.*"], ["re:visual.*", "model.visual.blocks.0.attn.qkv", "lm_head"]])
def test_float8_whose_ignore_list_names_the_tower_loads(ignored: list[str], tmp_path: Path) -> None:
    path = as_wrapper(tmp_path, "LlavaForConditionalGeneration", "llama_biased", "llama", "model.language_model.")
    config, stored = json.loads((path / "config.json").read_text(encoding="utf-8")), load_file(path / FILE)
    names = [name for name in stored if name.endswith("proj.weight")]
    widened = dict(stored)
    for number, name in enumerate(names):
        scale = np.float32(0.5 + number / 8)
        stored[name] = (stored[name] / scale).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = np.asarray(scale)
        widened[name] = stored[name].astype(np.float32) * scale
    save_file(widened, path / FILE)
    expected = numbers(load(path)[1])
    write_safetensors(path / FILE, stored)
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    write_json(path / "config.json", config | {"quantization_config": quantization})
    found = numbers(load(path)[1])
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("architecture", [name for name, found in ARCHITECTURES.items() if found.texts])
def test_an_unknown_text_model_is_refused_by_name(architecture: str) -> None:
    part: dict[str, Any] = {"text_config": {"model_type": "mamba", "hidden_size": 8}}
    part = {"thinker_config": part} if "Omni" in architecture else part
    with pytest.raises(ConfigError, match=r"text_config\.model_type: 'mamba' is not supported") as error:
        ModelConfig.from_hf({"architectures": [architecture], **part})
    assert "\n" not in str(error.value)
    assert set(TEXT_MODELS[architecture]) <= set(str(error.value).replace(",", " ").split())
