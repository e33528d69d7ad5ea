"""Models that take images: which text models they may have, and which of two places says what."""

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import ConfigError
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.nested_config import TEXT_MODELS
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config, write_json

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
TIED = "tie_word_embeddings"
OMNI = "Qwen3OmniMoeForConditionalGeneration"
WRAPPERS = {
    "Cohere2VisionForConditionalGeneration": ("cohere2_vision", "cohere2", "cohere2"),
    "Gemma3ForConditionalGeneration": ("gemma3", "gemma3", "gemma3_text"),
    "Glm4vForConditionalGeneration": ("glm4v", "glm4", "glm4v_text"),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe", "glm4_moe", "glm4v_moe_text"),
    "InternVLForConditionalGeneration": ("internvl", "qwen3", "qwen3"),
    "KimiK25ForConditionalGeneration": ("kimi_k25", "kimi_k2", "kimi_k2"),
    "Kimi_K25ForConditionalGeneration": ("kimi_k25", "kimi_k2", "deepseek_v3"),
    "LlavaForConditionalGeneration": ("llava", "llama_biased", "llama"),
    "LlavaNextForConditionalGeneration": ("llava_next", "mistral", "mistral"),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision", "qwen2", "qwen2"),
    "Mistral3ForConditionalGeneration": ("mistral3", "mistral", "mistral"),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "qwen2", "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", "qwen2", "qwen2_5_vl_text"),
    "Qwen3OmniMoeForConditionalGeneration": ("qwen3_omni_moe", "qwen3_moe", "qwen3_omni_moe_text"),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl", "qwen3", "qwen3_vl_text"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe", "qwen3_moe", "qwen3_vl_moe_text"),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "qwen3_5", "qwen3_5_text"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe", "qwen3_5_moe", "qwen3_5_moe_text"),
}
"""By architecture: its model_type, the tiny family of its text model, and that one's model_type."""


def nested(architecture: str, text: dict[str, Any] | None = None, **outer: Any) -> dict[str, Any]:
    """config.json. Args: text: keys of text_config that are other than the tiny family's; None: these are left out."""
    kind, family, text_kind = WRAPPERS[architecture]
    inner = tiny_config(family) | {"model_type": text_kind} | (text or {})
    inner = {key: value for key, value in inner.items() if value is not None and key != "architectures"}
    part = {"text_config": inner, **outer}
    part = {"thinker_config": part} if architecture == OMNI else part
    return {"architectures": [architecture], "model_type": kind, **part}


def test_every_model_that_takes_images_names_its_text_models() -> None:
    wrappers = {name for name in ARCHITECTURES if name.endswith("ForConditionalGeneration")}
    assert wrappers == set(WRAPPERS) == {name for name, found in ARCHITECTURES.items() if found.texts}
    assert wrappers <= set(TEXT_MODELS)
    served = {name or wrapper for wrapper in wrappers for name in TEXT_MODELS[wrapper].values()}
    assert all(ARCHITECTURES[name].module for name in served)


@pytest.mark.parametrize("architecture", WRAPPERS)
def test_a_text_model_of_another_kind_is_refused(architecture: str) -> None:
    assert ModelConfig.from_hf(nested(architecture)).num_layers
    assert ModelConfig.from_hf(nested(architecture, {"model_type": None})).num_layers
    message = rf"^text_config\.model_type: 'mamba' is not supported in {architecture}; supported: "
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(nested(architecture, {"model_type": "mamba"}))


def test_defaults_of_mistral_3_are_those_of_the_text_model_within() -> None:
    """A window of Mistral's; Ministral 3 has none, and queries that grow."""
    sizes = {key: tiny_config("mistral")[key] for key in ("vocab_size", "hidden_size", "intermediate_size")}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 8}

    def read(text: dict[str, Any]) -> Any:
        config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": sizes | text}
        return ModelConfig.from_hf(config).layers[0]

    assert read({}) == read({"model_type": "mistral"})
    assert (read({}).attention.window, read({}).norm.eps) == (4096, 1e-6)
    other = read({"model_type": "ministral3"})
    assert (other.attention.window, other.norm.eps, other.attention.rope.kind) == (None, 1e-5, "yarn")
    assert read({"sliding_window": None}).attention.window is None


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("architecture", sorted({*WRAPPERS} - {OMNI}))  # whose text is a part of a part, never tied
def test_a_head_is_tied_where_transformers_ties_it(architecture: str, tmp_path: Path) -> None:
    """As far as a file says: what neither place says is as transformers saves it, which always says it."""
    from transformers import AutoConfig

    for outer, inner in itertools.product((True, False), (True, False, None)):
        write_json(tmp_path / "config.json", nested(architecture, {TIED: inner}, **{TIED: outer}))
        wanted = AutoConfig.from_pretrained(tmp_path)  # a model asks this attribute
        for file in ("config.json", "saved/config.json"):
            config = ModelConfig.from_hf(*read_model_dir((tmp_path / file).parent))
            assert config.tie_word_embeddings is wanted.tie_word_embeddings, (file, outer, inner)
            wanted.save_pretrained(tmp_path / "saved")


def test_a_head_that_only_text_config_speaks_of() -> None:
    for value in (True, False):
        config = nested("Mistral3ForConditionalGeneration", {TIED: value})
        assert ModelConfig.from_hf(config).tie_word_embeddings is value


@pytest.mark.slow  # test_a_head_is_tied_where_transformers_ties_it has its config
@needs_torch
@pytest.mark.torch
def test_logits_of_a_mistral_3_whose_head_is_tied_as_transformers_saves_it(tmp_path: Path) -> None:
    import torch
    from transformers import Mistral3ForConditionalGeneration

    torch.set_num_threads(1)
    stored = make_checkpoint(tmp_path / "stored", "mistral")
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "head_dim": 8, "image_size": 32, "patch_size": 16}
    architecture = "Mistral3ForConditionalGeneration"
    config = nested(architecture, {TIED: False}, vision_config=vision, **{TIED: True})
    weights = load_file(stored / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(
        {name.replace("model.", "model.language_model.", 1): value for name, value in weights.items()},
        stored / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_json(stored / "config.json", config)
    theirs = Mistral3ForConditionalGeneration.from_pretrained(stored, dtype=torch.float32, attn_implementation="eager")
    theirs.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert (saved[TIED], saved["text_config"][TIED]) == (True, False)
    chosen = prompts()[4:6]
    found = Driver(*load(tmp_path / "saved"), num_sequences=2).step(chosen)
    for b, prompt in enumerate(chosen):
        with torch.inference_mode():
            wanted = theirs(torch.tensor([prompt])).logits[0].numpy()
        np.testing.assert_allclose(found[b], wanted, atol=1e-4, rtol=0)
