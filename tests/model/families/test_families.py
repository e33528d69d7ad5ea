"""Families: how small they are, what their configs may say, models that have a text model as a part, and head norms."""

import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from palladio.model import families
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.base.module import Context
from palladio.model.base.sharding import make_mesh
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.family import Family
from palladio.model.config.registry import find_family
from palladio.model.layers.norm import Norm, key_norm, query_norm
from palladio.model.layers.rope import Rotations, inverse_frequencies
from palladio.model.loading.layout.parameters import Parameters
from palladio.model.loading.layout.relayout import relayout
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import load_model
from palladio.model.spec.layer_spec import QKNormSpec
from palladio.model.spec.norm_spec import NormSpec
from palladio.model.spec.rope_config import RopeConfig
from tests import tiny_families
from tests.model.driver import Driver, load, numbers
from tests.model.make_goldens import GOLDENS, prompts
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import FAMILIES, make_checkpoint, tiny_config, write_json


def read(family: str, without: tuple[str, ...] = (), **overrides: Any) -> ModelConfig:
    config = tiny_config(family, **overrides)
    return ModelConfig.from_hf({key: value for key, value in config.items() if key not in without})


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.attention.window for layer in config.layers]


def thetas(config: ModelConfig) -> list[float | None]:
    return [layer.attention.rope and layer.attention.rope.theta for layer in config.layers]


def test_a_family_is_one_small_file() -> None:
    for file in Path(families.__path__[0]).glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 80, file
    assert len(dataclasses.fields(Family)) == 5
    assert all(find_family(name).weights for name in ARCHITECTURES)


def test_every_tiny_family_has_a_golden_that_does_not_repeat_itself() -> None:
    for family in FAMILIES:
        tokens = np.load(GOLDENS / f"{family}.npz")["tokens"]
        assert min(len(set(row.tolist())) for row in tokens) >= 20, family


def test_gemma3_alternates_windows_and_frequencies() -> None:
    config = read("gemma3")
    assert windows(config) == [12, 12, None, 12]
    assert thetas(config) == [1e4, 1e4, 1e6, 1e4]
    assert {rope.kind for rope in config.ropes} == {"default", "linear"}, "only full attention is stretched"
    assert len(set(config.layers)) == 2
    nested = {"sliding_attention": {"rope_theta": 2e4}, "full_attention": {"rope_theta": 3e6, "rope_type": "default"}}
    new = read("gemma3", without=("rope_theta", "rope_local_base_freq", "rope_scaling"), rope_parameters=nested)
    assert thetas(new) == [2e4, 2e4, 3e6, 2e4]
    types = ["full_attention", "sliding_attention"] * 2
    assert windows(read("gemma3", layer_types=types)) == [None, 12, None, 12]
    assert read("gemma3").embedding_scale == 48**0.5
    assert getattr(config.layers[0].attention, "scale", None) == 20**-0.5


def test_the_others_alternate_too() -> None:
    assert windows(read("gemma2")) == [12, None, 12]
    assert windows(read("olmo3")) == [12, 12, 12, None]
    assert [rope.kind for rope in read("olmo3").ropes] == ["default", "yarn"]
    assert windows(read("cohere2")) == [12, None, 12]
    assert thetas(read("cohere2")) == [1e4, None, 1e4]
    assert thetas(read("smollm3")) == [1e4, None, 1e4]
    assert thetas(read("smollm3", no_rope_layers=[0, 1, 0])) == [None, 1e4, None]


def test_longrope_is_chosen_by_the_models_context() -> None:
    (long,), (short,) = read("phi3").ropes, read("phi3", max_position_embeddings=16).ropes
    assert (long.is_long, long.factor, short.is_long, short.factor) == (True, 32.0, False, 1.0)
    plain = inverse_frequencies(RopeConfig(theta=1e4), 8)
    np.testing.assert_allclose(plain / inverse_frequencies(long, 8), [1.5, 2.0, 3.5, 6.0], rtol=1e-6)
    np.testing.assert_allclose(plain / inverse_frequencies(short, 8), [1.0, 1.1, 1.2, 1.3], rtol=1e-6)
    old = dict(tiny_config("phi3")["rope_scaling"], type="su")
    del old["rope_type"]
    assert read("phi3", rope_scaling=old) == read("phi3")
    assert read("phi3").for_context(16).ropes == (dataclasses.replace(long, is_long=False),)
    assert read("phi3").for_context(17) == read("phi3")
    assert read("gemma3").for_context(16) == read("gemma3"), "its window of 12 is shorter"
    (partial,) = read("phi4_mini").ropes
    assert partial.rotated(8) == 6


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("gemma3", {"hidden_activation": "mish"}, "hidden_activation: 'mish' is not supported; supported: "),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True"),
        ("gemma3", {"sliding_window": None}, "sliding_window is missing"),
        ("gemma3", {"rope_parameters": {"full_attention": 1e4}}, "rope_parameters must hold an object for each of"),
        ("llama3", {"layer_types": ["sliding_attention"] * 2}, "this architecture does not support sliding_attention"),
        ("gemma3", {"rope_parameters": "default"}, "rope_parameters must hold an object for each of"),
        ("gemma3", {"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ("gemma2", {"attn_logit_softcapping": "high"}, "attn_logit_softcapping must be a number"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a number greater than 0"),
        ("phi3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type: 'yarn' is not supported here"),
        ("phi3", {"original_max_position_embeddings": 1}, "original_max_position_embeddings must be at least 2"),
        ("phi3", {"partial_rotary_factor": 0.1}, "partial_rotary_factor 0.1 rotates 0 of the 8 dimensions"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor must be at most 1"),
        (
            "olmo2",
            {"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "partial_rotary_factor: 0.5 is not supported",
        ),
        ("olmo3", {"layer_types": ["full_attention"]}, "each of the 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must list 1"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, "no_rope_layers must list 1"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
        ("cohere", {"logit_scale": 0}, "logit_scale must be a number greater than 0"),
        ("qwen3_next", {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; supported: silu, swish"),
        ("granite", {"residual_multiplier": "x"}, "residual_multiplier must be a number"),
    ],
)
def test_what_a_family_cannot_do_is_refused_by_name(family: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(family, **overrides)


def gemma3_with_images(folder: Path, prefix: str) -> Path:
    """A checkpoint of Gemma3ForConditionalGeneration: its text model under `prefix`, and tensors of a vision tower."""
    make_checkpoint(folder, "gemma3")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    outer = {key: config.pop(key) for key in ("architectures", "eos_token_id", "torch_dtype")}
    outer |= {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    write_json(folder / "config.json", outer | {"text_config": config, "vision_config": {"hidden_size": 8}})
    text = {name.replace("model.", prefix, 1): value for name, value in load_file(folder / "model.safetensors").items()}
    vision = {
        "vision_tower.vision_model.embeddings.patch_embedding.bias": np.ones(8, np.float32),
        "multi_modal_projector.mm_soft_emb_norm.weight": np.ones(8, np.float32),
    }
    save_file(text | vision, folder / "model.safetensors")
    return folder


@pytest.mark.slow  # tests/model/families/test_relatives.py has others of them
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_model_with_images(prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    plain, model = load(make_checkpoint(tmp_path / "plain", "gemma3"))
    config, nested = load(gemma3_with_images(tmp_path / "nested", prefix))
    same = dataclasses.replace(config, architecture=plain.architecture, model_type=plain.model_type)
    assert same == plain
    chosen = prompts()[3:5]
    expected, found = (Driver(config, each, 2).step(chosen) for each in (model, nested))
    for b in range(2):
        np.testing.assert_array_equal(found[b], expected[b])
    (told,) = caplog.messages
    assert told.endswith(
        "the model is served for text only; images and sound are not supported. "
        "Ignored tensors: 1 of multi_modal_projector, 1 of vision_tower"
    )


def test_overrides_reach_the_text_model(tmp_path: Path) -> None:
    path = gemma3_with_images(tmp_path, "language_model.model.")
    assert ModelConfig.from_hf(*read_model_dir(path, {"sliding_window": 7})).layers[0].attention.window == 7


def test_a_tensor_of_no_known_part_is_an_error(tmp_path: Path) -> None:
    path = gemma3_with_images(tmp_path, "language_model.model.")
    save_file(
        load_file(path / "model.safetensors") | {"audio.weight": np.ones(2, np.float32)}, path / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"unexpected keys .*audio\.weight"):
        load(path)


@pytest.mark.parametrize("form", ["own_scales", "all_heads"])
@pytest.mark.parametrize("num_shards", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (4, 8))])
def test_norms_of_heads_count_each_stored_head_once(form: Any, num_shards: int) -> None:
    """6 heads and 3 kv heads, laid out with padding and copies."""
    stored = read("olmo2", num_attention_heads=6, num_key_value_heads=3)
    layout, rng = TensorLayout.of(stored, num_shards), np.random.default_rng(0)
    spec = QKNormSpec(norm=NormSpec(eps=1e-6, scaling="float32"), form=form)
    context, H = Context(jnp.float32, jnp.float32, nnx.Rngs(0)), stored.head_size
    for make, axis in ((query_norm, "heads"), (key_norm, "keys")):
        count = (lambda config: config.num_heads) if axis == "heads" else (lambda config: config.num_kv_heads)
        small = make(context, count(stored), H, spec, None)
        large = make(context, count(layout.config), H, spec, layout.config.head_counts)
        scale, x = (
            jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((count(stored) * H,), (5, count(stored), H))
        )
        small.scale[...] = scale
        large.scale[...] = relayout(scale, (axis,), layout)

        def laid_out(x: Any, axis: str = axis) -> Any:
            return relayout(x.reshape(5, -1), (None, axis), layout).reshape(5, -1, H)

        np.testing.assert_allclose(large(laid_out(x)), laid_out(small(x)), atol=1e-6, rtol=0)


def test_forms_of_a_norm() -> None:
    x, scale = jnp.asarray([[1.0, 3.0, 5.0, 7.0]]), jnp.asarray([0.5, 1.0, 2.0, -1.0])

    def norm(**options: Any) -> np.ndarray:
        module = Norm(Context(jnp.float32, jnp.float32, nnx.Rngs(0)), 4, NormSpec(eps=0.0, **options))
        module.scale[...] = scale
        if module.bias is not None:
            module.bias[...] = jnp.full(4, 10.0)
        return np.asarray(module(x))

    rms = np.asarray(x) / 21**0.5
    centered = np.array([[-3.0, -1.0, 1.0, 3.0]]) / 5**0.5
    np.testing.assert_allclose(norm(), rms * scale, rtol=1e-6)
    np.testing.assert_allclose(norm(scaling="plus_one"), rms * (1 + scale), rtol=1e-6)
    np.testing.assert_allclose(norm(kind="layer", scaling="float32", bias=True), centered * scale + 10, rtol=1e-6)


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_partial_rotation_turns_pairs_and_leaves_the_rest(is_interleaved: bool) -> None:
    rope = RopeConfig(theta=100.0, fraction=0.5, is_interleaved=is_interleaved)
    x = np.random.default_rng(0).normal(size=(3, 2, 8)).astype(np.float32)
    rotations = Rotations.of((rope,), 8, jnp.arange(3))
    found = np.asarray(rotations.rotate(jnp.asarray(x), rope))
    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])
    for pair, (i, j) in enumerate(((0, 1), (2, 3)) if is_interleaved else ((0, 2), (1, 3))):
        turned = (x[..., i] + 1j * x[..., j]) * np.exp(1j * np.arange(3)[:, None] * 100.0 ** (-pair / 2))
        np.testing.assert_allclose(found[..., i] + 1j * found[..., j], turned, atol=1e-5)
    assert rotations.rotate(x, None) is x


def test_dummy_weights_of_every_family(tmp_path: Path) -> None:
    for family in ("olmo2", "starcoder2"):
        config = read(family, num_hidden_layers=1)
        model = load_model(tmp_path, config, dtype=jnp.float32, mesh=make_mesh(1), load_format="dummy")
        hidden = Driver(model.config, model, 1).step([[5, 6, 7]])[0]
        assert np.isfinite(hidden).all()
        assert hidden.std() > 0.01


_GLM4 = {"attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 128}
_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
_GEMMA3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}

_LLAVA_MISTRAL = {"model_type": "mistral", "rope_theta": 1e6, "sliding_window": None, "vocab_size": 32064}
_PIXTRAL = {
    "model_type": "mistral",
    "hidden_size": 5120,
    "head_dim": 128,
    "num_hidden_layers": 40,
    "sliding_window": None,
    "vocab_size": 131072,
}


@pytest.mark.parametrize(
    ("architecture", "sizes", "keys", "billions"),
    [
        ("Gemma3ForConditionalGeneration", None, {"text_config": _GEMMA3_4B}, 3.88),
        ("Gemma2ForCausalLM", (3584, 14336, 42, 16, 8, 256000), {"head_dim": 256}, 9.24),
        (
            "Phi3ForCausalLM",
            (3072, 8192, 32, 24, 8, 200064),
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "partial_rotary_factor": 0.75,
                "rope_scaling": _LONGROPE,
                "tie_word_embeddings": True,
            },
            3.84,
        ),
        ("Olmo2ForCausalLM", (4096, 11008, 32, 32, 32, 100352), {}, 7.30),
        ("GraniteForCausalLM", (4096, 12800, 40, 32, 8, 49159), {"tie_word_embeddings": True}, 8.17),
        ("SmolLM3ForCausalLM", (2048, 11008, 36, 16, 4, 128256), {}, 3.08),
        ("Cohere2ForCausalLM", (4096, 14336, 32, 32, 8, 256000), {"sliding_window_pattern": 4}, 8.03),
        ("Glm4ForCausalLM", (4096, 13696, 40, 32, 2, 151552), _GLM4, 9.40),
        ("Starcoder2ForCausalLM", (4608, 18432, 32, 36, 4, 49152), {}, 7.17),
        # As they are published: without what transformers has as a default.
        ("LlavaForConditionalGeneration", None, {"text_config": {"model_type": "llama", "vocab_size": 32064}}, 6.74),
        ("LlavaNextForConditionalGeneration", None, {"text_config": _LLAVA_MISTRAL}, 7.24),
        ("LlavaForConditionalGeneration", None, {"text_config": _PIXTRAL}, 12.25),
        ("OlmoeForCausalLM", (2048, 1024, 16, 16, 16, 50304), {"num_experts": 64, "num_experts_per_tok": 8}, 6.92),
    ],
)
def test_published_sizes(
    architecture: str, sizes: tuple[int, ...] | None, keys: dict[str, Any], billions: float
) -> None:
    """Parameters of the published models, text alone; what config.json leaves out is the family's default."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    hf = dict(zip((*names, "vocab_size"), sizes or (), strict=sizes is not None)) | keys
    config = ModelConfig.from_hf({"architectures": [architecture], **hf})
    parameters = Parameters.of(TensorLayout.of(config, 1), jnp.bfloat16, make_mesh(1))
    count = sum(math.prod(param.shape) for _, param in parameters.by_path.values())
    assert count / 1e9 == pytest.approx(billions, rel=0.005)
    assert len(set(config.layers)) <= 2


@pytest.mark.parametrize("family", ["phi3", "gemma3"])
def test_float8_of_fused_and_of_nested_tensors(family: str, tmp_path: Path) -> None:
    """A scale serves all parts that a tensor is taken apart into, and has its tensor's prefix."""
    path = (
        make_checkpoint(tmp_path, family) if family == "phi3" else gemma3_with_images(tmp_path, "language_model.model.")
    )
    file, config = path / "model.safetensors", json.loads((path / "config.json").read_text(encoding="utf-8"))
    stored, widened = load_file(file), load_file(file)
    names = [name for name in stored if name.endswith("proj.weight")]
    assert len(names) >= 4
    for number, name in enumerate(names):
        scale = np.float32(0.5 + number / 8)
        stored[name] = (stored[name] / scale).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = np.asarray(scale)
        widened[name] = stored[name].astype(np.float32) * scale
    save_file(widened, file)
    expected = numbers(load(path)[1])
    write_safetensors(file, stored)
    write_json(path / "config.json", config | {"quantization_config": {"quant_method": "fp8"}})
    found = numbers(load(path)[1])
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_as_transformers_writes_it(family: str, tmp_path: Path) -> None:
    """transformers 5 nests and renames what older files say; and it adds every default."""
    from transformers import AutoConfig

    config = tiny_config(family)
    write_json(tmp_path / "config.json", config)
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert ModelConfig.from_hf(written) == ModelConfig.from_hf(config)


@pytest.mark.parametrize("family", tiny_families.CONFIGS)
def test_defaults_are_those_of_transformers(family: str) -> None:
    """A config.json with nothing but sizes."""
    from transformers import AutoConfig

    kind = tiny_config(family)["model_type"]
    sizes = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4 if "kv_lora_rank" in tiny_config(family) else 2,
        **({"num_experts_per_tok": 2} if kind == "deepseek_v2" else {}),  # transformers has no default
    }
    short = {"architectures": tiny_config(family)["architectures"], "model_type": kind, **sizes}
    whole = AutoConfig.for_model(kind, **sizes).to_dict() | {"architectures": short["architectures"]}
    assert ModelConfig.from_hf(short) == dataclasses.replace(ModelConfig.from_hf(whole), model_type=kind)
