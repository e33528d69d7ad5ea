"""Encoders against transformers, with every parameter and buffer random: packed, alone, with windows and types."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.config.encoders import ENCODERS, is_encoder
from palladio.model.layers.segment_attention import buckets
from palladio.model.spec.encoder_spec import DistanceBias
from palladio.model.spec.layer_spec import DenseSpec
from palladio.pallas_kernels.choice import Kernels
from tests.many_devices import call_with_devices
from tests.model.encoder_driver import encode, load, relative_error
from tests.tiny_encoders import CONFIGS, classifier_of, config_of, make_folder

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
QUICK = ("BertModel", "RobertaModel", "MPNetModel", "ModernBertModel", "Gemma3TextModel")
HEADS = ("BertModel", "RobertaModel", "ModernBertModel")
TYPED = ("BertModel", "NomicBertModel", "GteModel")


def texts(*lengths):
    """Random ids, of which none is that of padding."""
    return [np.random.default_rng(length).integers(5, 384, length).tolist() for length in lengths]


def types_of(some):
    """Those of pairs, of which the second text is a third of all."""
    return [[0] * (len(text) - len(text) // 3) + [1] * (len(text) // 3) for text in some]


def some(names, quick=QUICK):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("architecture", some(CONFIGS))
def test_against_transformers(architecture, tmp_path):
    """Texts of 1, 5, 75 and 40 tokens in one pack, of pairs where there are types."""
    from tests.model import encoder_oracle as oracle

    folder = oracle.save(architecture, tmp_path)
    inputs = texts(5, 1, 75, 40)
    types = types_of(inputs) if architecture in TYPED else None
    meant = oracle.run(folder, architecture, inputs, types)
    _, model = load(folder)
    for found, states in zip(encode(model, inputs, types), meant, strict=True):
        assert relative_error(found, states) < 1e-5


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_long_texts(architecture, tmp_path):
    """Of 511, 512 and 513 tokens between short ones: several blocks of attention each."""
    from tests.model import encoder_oracle as oracle

    folder = oracle.save(architecture, tmp_path)
    inputs = texts(3, 511, 512, 9, 513)
    _, model = load(folder)
    meant = oracle.run(folder, architecture, inputs)
    for found, states in zip(encode(model, inputs), meant, strict=True):
        assert relative_error(found, states) < 1e-5
    assert relative_error(encode(model, inputs[2:3], padding=0)[0], meant[2]) < 1e-5


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("architecture", some([name for name in CONFIGS if name in ENCODERS], HEADS))
def test_heads_that_classify(architecture, tmp_path):
    from tests.model import encoder_oracle as oracle

    architecture = classifier_of(architecture)
    folder = oracle.save(architecture, tmp_path)
    inputs = texts(17, 8)
    meant = oracle.run(folder, architecture, inputs)
    config, model = load(folder)
    assert config.encoder is not None
    assert config.encoder.head is not None
    assert config.encoder.head.pooling == "cls"
    pooled = jnp.stack([states[0] for states in encode(model, inputs)])
    assert relative_error(model.classify(pooled), np.stack(meant)) < 1e-5


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
def test_a_head_over_a_mean(tmp_path):
    from tests.model import encoder_oracle as oracle

    architecture = classifier_of("ModernBertModel")
    folder = oracle.save(architecture, tmp_path, classifier_pooling="mean")
    inputs = texts(17, 8)
    meant = oracle.run(folder, architecture, inputs)
    config, model = load(folder)
    assert config.encoder.head.pooling == "mean"
    pooled = jnp.stack([states.mean(axis=0) for states in encode(model, inputs)])
    assert relative_error(model.classify(pooled), np.stack(meant)) < 1e-5


def on_devices(folders):
    """How far the hidden states are from those of one device: for each folder over 2 and over 4."""
    errors = []
    for folder in folders:
        inputs = texts(30, 9)
        meant = encode(load(Path(folder), load_format="dummy")[1], inputs)
        for size in (2, 4):
            divided = load(Path(folder), mesh=make_mesh(size), load_format="dummy")[1]
            found = encode(divided, inputs)
            errors.append(max(relative_error(*both) for both in zip(found, meant, strict=True)))
    return errors


@pytest.mark.slow
def test_devices_that_share_the_layers(tmp_path):
    """Heads that divide, and those that are padded: 6 over 2 and over 4 devices."""
    architectures = ("BertModel", "MPNetModel", "ModernBertModel")
    folders = [str(make_folder(tmp_path / architecture, architecture)) for architecture in architectures]
    errors = call_with_devices(__name__, "on_devices", folders)
    assert max(errors) < 2e-6, errors


@pytest.mark.parametrize(
    "architecture", ["BertModel", "ModernBertModel", pytest.param("MPNetModel", marks=pytest.mark.slow)]
)
def test_neighbours_change_nothing(architecture, tmp_path):
    _, model = load(make_folder(tmp_path, architecture), load_format="dummy")
    first, second, third = texts(40, 150, 33)
    alone = encode(model, [second], padding=0)[0]
    assert relative_error(encode(model, [first, second, third])[1], alone) < 1e-6


@pytest.mark.slow
def test_the_reference_agrees(tmp_path):
    folder = make_folder(tmp_path, "ModernBertModel")
    inputs = texts(150, 40)
    _, model = load(folder, load_format="dummy")
    _, other = load(folder, load_format="dummy", kernels=Kernels("reference"))
    for found, states in zip(encode(model, inputs), encode(other, inputs), strict=True):
        assert relative_error(found, states) < 2e-6


def test_buckets_of_distances():
    """The first eight distances on each side are apart, the last bucket holds all from 128 on."""
    found = buckets(DistanceBias(num_buckets=32, max_distance=128)).tolist()
    assert found[128:137] == [0, 17, 18, 19, 20, 21, 22, 23, 24]
    assert found[120:128] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert (found[0], found[-1]) == (15, 31)
    assert sorted(set(found)) == [*range(16), *range(17, 32)]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_encoders_are_recognised(architecture):
    config = config_of(architecture)
    assert is_encoder(config)
    found = ModelConfig.from_hf(config)
    assert found.encoder is not None
    assert not found.has_head
    assert found.max_position_embeddings == 520


def test_a_decoder_is_none():
    assert not is_encoder({"architectures": ["Qwen3ForCausalLM"]})
    assert not is_encoder({"architectures": ["Gemma3TextModel"]})
    assert not is_encoder({"architectures": None})


@pytest.mark.parametrize(
    ("architecture", "change", "key"),
    [
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("BertModel", {"is_decoder": True}, "is_decoder"),
        ("RobertaModel", {"pad_token_id": None}, "pad_token_id"),
        ("RobertaModel", {"max_position_embeddings": 2}, "max_position_embeddings"),
        ("MPNetModel", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets"),
        ("NomicBertModel", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        ("ModernBertForSequenceClassification", {"classifier_pooling": "max"}, "classifier_pooling"),
        ("BertForSequenceClassification", {"classifier_from_token": ["a", "b"]}, "classifier_from_token"),
    ],
)
def test_what_is_refused(architecture, change, key):
    with pytest.raises(ConfigError, match=key):
        ModelConfig.from_hf(config_of(architecture, **change))


def test_published_nomic_names():
    config = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "vocab_size": 384,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 6,
        "n_inner": 80,
        "n_positions": 256,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": False,
        "prenorm": False,
        "type_vocab_size": 2,
    }
    found = ModelConfig.from_hf(config)
    (layer,) = set(found.layers)
    assert (found.hidden_size, found.num_layers, found.intermediate_size) == (48, 2, 80)
    assert layer.attention.rope is not None
    assert layer.attention.rope.theta == 1000
    assert isinstance(layer.mlp, DenseSpec)
    assert (layer.mlp.activation, layer.mlp.is_gated) == ("silu", True)


@needs_torch
@pytest.mark.torch
def test_a_missing_tensor_is_named(tmp_path):
    from safetensors.numpy import load_file, save_file

    from tests.model import encoder_oracle as oracle

    folder = oracle.save("BertModel", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["embeddings.LayerNorm.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embeddings\.LayerNorm\.bias"):
        load(folder)


@needs_torch
@pytest.mark.torch
def test_older_names_of_norms(tmp_path):
    """As files of before 2020 have them."""
    from safetensors.numpy import load_file, save_file

    from tests.model import encoder_oracle as oracle

    folder = oracle.save("BertModel", tmp_path)
    inputs = texts(9)
    meant = encode(load(folder)[1], inputs)[0]
    tensors = load_file(folder / "model.safetensors")
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in list(tensors):
        for new, old in older.items():
            if name.endswith(new):
                tensors[name.replace(new, old)] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    np.testing.assert_array_equal(encode(load(folder)[1], inputs)[0], meant)
