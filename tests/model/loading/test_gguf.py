"""GGUF files: config out of metadata, names, blocks that keep their bits, and errors that name tensor and remedy."""

import collections
import json
import logging
import re
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from palladio.model.base.errors import ConfigError
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.formats.gguf_blocks import BLOCK_TYPES
from palladio.model.functional import flatten_model, num_bytes
from palladio.model.gguf.gguf_file import BLOCKS, TYPE_NAMES
from palladio.model.loading import orbax_weights
from palladio.model.loading.load_model import weight_bytes
from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.safetensors_file import StoredTensor
from palladio.model.loading.stored_matrices import find_matrix, read_matrix
from tests.model.driver import Driver, load, numbers
from tests.model.gguf_files import SIZES, as_gguf, drawn_blocks, metadata_of, widened, write_gguf
from tests.model.loading.test_quantized_weights import assert_as_transformers, assert_equal, convert
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config

SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = {
    "Q4_0": "int4 W4A16, a scale per 32 inputs",
    "Q4_1": "int4 W4A16, a scale per 32 inputs and float32 zero points",
    "Q5_0": "int8 W8A16, a scale per 32 inputs",
    "Q5_1": "int8 W8A16, a scale per 32 inputs and float32 zero points",
    "Q8_0": "int8 W8A16, a scale per 32 inputs",
    "Q2_K": "int4 W4A16, a scale per 16 inputs and float32 zero points",
    "Q3_K": "int4 W4A16, a scale per 16 inputs",
    "Q4_K": "int4 W4A16, a scale per 32 inputs and float32 zero points",
    "Q5_K": "int8 W8A16, a scale per 32 inputs and float32 zero points",
    "Q6_K": "int8 W8A16, a scale per 16 inputs",
    "IQ4_NL": "int8 W8A16, a scale per 32 inputs",
    "IQ4_XS": "int8 W8A16, a scale per 32 inputs",
    "MXFP4": "fp4 W4A16, a scale per 32 inputs",
    "F16": "float32",
}
# Each type's blocks are dequantized in test_blocks_are_dequantized_as_by_the_gguf_package.
QUICK = ("Q4_K", "MXFP4")


def small(path: Path, family: str = "llama3", **more: Any) -> Path:
    return make_checkpoint(path, family, **{**SHAPE, "head_dim": 64, "rope_scaling": None} | more)


@pytest.mark.parametrize("kind", SIZES)
def test_blocks_are_dequantized_as_by_the_gguf_package(kind: str) -> None:
    assert BLOCKS.keys() == BLOCK_TYPES.keys() == SIZES.keys()
    stored = drawn_blocks(kind, (5, 512), np.random.default_rng(1))
    found = BLOCK_TYPES[kind].unpack(StoredTensor("x", Path("x"), kind, (5, 512), 0, 0), stored)
    np.testing.assert_array_equal(found.dense(np.float32), widened(kind, stored))
    kept = BLOCK_TYPES[kind].kind
    assert found.block == (1, kept.group)
    assert (found.zeros is not None, found.is_float4) == (kept.has_zeros, kept.is_float4)
    low, high = (-8, 7) if kept.bits == 4 else (-128, 127)
    assert low <= found.values.min() <= found.values.max() <= high


@pytest.mark.parametrize(
    ("kind", "family", "architecture"),
    [
        *(pytest.param(kind, "llama3", "llama", marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS),
        pytest.param("Q4_K", "qwen2", "qwen2", marks=pytest.mark.slow),
        ("Q6_K", "qwen3", "qwen3"),
    ],
)
def test_numbers_are_those_of_the_format(kind: str, family: str, architecture: str, tmp_path: Path) -> None:
    file = as_gguf(small(tmp_path, family), architecture, lambda name: kind)
    loaded = load(file)
    found, expected = numbers(loaded[1]), numbers(load(tmp_path / "wide")[1])
    assert KINDS[kind] in weight_bytes(loaded[1])
    if "zero points" in KINDS[kind]:  # minima became zero points: as near as float32 can be
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            np.testing.assert_allclose(found[name], wanted, atol=3e-8, rtol=0, err_msg=name)
    else:
        assert_equal(found, expected)
    if family == "llama3" or kind == "Q6_K":
        assert_as_transformers(tmp_path / "wide", loaded)


def test_dequantized_bit_for_bit(tmp_path: Path) -> None:
    """What --quantization dequantize makes: minima are subtracted, not turned into zero points."""
    file = as_gguf(small(tmp_path), "llama", lambda name: "Q4_K")
    config, model = load(file, quantization="dequantize")
    assert config.weight_kinds.kind is None
    assert_equal(numbers(model), numbers(load(tmp_path / "wide")[1]))


def test_a_usual_mixture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Q4_K_M: values in Q6_K beside keys in Q4_K are one projection, which is widened, and the log says so."""

    def kind(name: str) -> str:
        return "Q6_K" if "layers.1.self_attn.v_proj" in name or "down_proj" in name else "Q4_K"

    file = as_gguf(small(tmp_path), "llama", kind)
    with caplog.at_level(logging.WARNING):
        config, model = load(file)
    assert config.weight_kinds.dense == ("layers.1.attention.qkv.kernel",)
    assert config.weight_kinds.of("layers.0.mlp.down.kernel").name == KINDS["Q6_K"]
    (told,) = [record.getMessage() for record in caplog.records if "dense" in record.getMessage()]
    assert "3 quantized matrices are parts of projections whose parts differ in kind" in told
    assert "model.layers.1.self_attn.q_proj.weight" in told
    assert f"{2 * 256 * (256 + 2 * 128) / 1e9:.3f} GB" in told
    assert_as_transformers(tmp_path / "wide", (config, model))


def test_the_log_says_what_each_type_became(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Experts of a layer are one tensor of the file; bytes in the file are those that its own reader finds."""
    moe = small(tmp_path, "qwen3_moe", num_hidden_layers=1, num_experts=4, moe_intermediate_size=256)
    own = {"expert_count": 4, "expert_used_count": 3, "expert_feed_forward_length": 256}
    kinds = {"gate": "F32", "down_proj": "Q5_0", "o_proj": "Q5_0", "v_proj": "Q8_0", "embed_tokens": "IQ4_NL"}
    file = as_gguf(
        moe,
        "qwen3moe",
        lambda name: kinds.get(name.split(".")[-2], "Q4_1"),
        {f"qwen3moe.{key}": value for key, value in own.items()},
    )
    stored: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for tensor in GGUFReader(file).tensors:
        stored[tensor.tensor_type.name] += int(tensor.n_bytes)
        counts[tensor.tensor_type.name] += 1
    with caplog.at_level(logging.INFO):
        _, model = load(file)
    (told,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("GGUF: ")]
    found = re.findall(r"(\d+) tensors? (\w+) → (.*?) \(([\d.]+) → ([\d.]+) MB\)", told)
    in_file: collections.Counter[str] = collections.Counter()
    in_memory: collections.Counter[str] = collections.Counter()
    for count, kind, form, before, after in found:
        counts[kind] -= int(count)
        in_file[kind] += round(float(before) * 10)
        in_memory[form] += round(float(after) * 10)
    assert set(counts.values()) == {0}
    for kind, size in stored.items():
        assert abs(in_file[kind] - size / 1e5) <= 1, kind
    wanted = weight_bytes(model)
    assert in_memory.keys() == wanted.keys()
    for form, size in wanted.items():
        assert abs(in_memory[form] - size / 1e5) <= 2, form
    forms = {(kind, form) for _, kind, form, _, _ in found}
    assert ("Q5_0", KINDS["Q5_0"]) in forms
    assert {("Q4_1", "float32"), ("Q8_0", "float32")} <= forms, "queries, keys and values differ in type"


@pytest.mark.slow  # test_a_usual_mixture has experts
def test_experts_and_norms_with_one_added(tmp_path: Path) -> None:
    moe = small(tmp_path / "moe", "qwen3_moe", num_hidden_layers=1, num_experts=4, moe_intermediate_size=256)
    own = {"expert_count": 4, "expert_used_count": 3, "expert_feed_forward_length": 256}
    more = {f"qwen3moe.{key}": value for key, value in own.items()}
    loaded = load(as_gguf(moe, "qwen3moe", lambda name: "F32" if name.endswith("mlp.gate.weight") else "Q6_K", more))
    assert_equal(numbers(loaded[1]), numbers(load(moe / "wide")[1]))
    assert_as_transformers(moe / "wide", loaded)

    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 64}
    gemma = small(tmp_path / "gemma", "gemma3", num_hidden_layers=3, **scaling)
    more = {"attention.sliding_window": 12, "attention.sliding_window_pattern": 3, "rope.scaling.type": "linear"}
    own = {f"gemma3.{key}": value for key, value in {**more, "rope.scaling.factor": 8.0}.items()}
    loaded = load(as_gguf(gemma, "gemma3", lambda name: "Q8_0", own))
    assert_equal(numbers(loaded[1]), numbers(load(gemma / "wide")[1]))
    assert_as_transformers(gemma / "wide", loaded)


@pytest.mark.slow  # parts of it: experts of another family, and another Gemma
def test_mixtral(tmp_path: Path) -> None:
    """Called llama in the file: queries and keys are permuted, and experts have names of their own."""
    moe = small(tmp_path, "mixtral", num_local_experts=4, num_experts_per_tok=2)
    more = {"llama.expert_count": 4, "llama.expert_used_count": 2}
    loaded = load(as_gguf(moe, "llama", lambda name: "F32" if name.endswith("moe.gate.weight") else "Q8_0", more))
    assert_equal(numbers(loaded[1]), numbers(load(moe / "wide")[1]))
    assert_as_transformers(moe / "wide", loaded)


@pytest.mark.slow
def test_gemma_2(tmp_path: Path) -> None:
    """Norms with one added, caps of scores and of logits, and windows in every other layer."""
    gemma = small(tmp_path, "gemma2", query_pre_attn_scalar=64)
    config = json.loads((gemma / "config.json").read_text())
    caps = {name: config[name] for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    more = {f"gemma2.{name}": value for name, value in caps.items()}
    more["gemma2.attention.sliding_window"] = config["sliding_window"]
    loaded = load(as_gguf(gemma, "gemma2", lambda name: "Q6_K", more))
    assert_equal(numbers(loaded[1]), numbers(load(gemma / "wide")[1]))
    assert_as_transformers(gemma / "wide", loaded)


def test_divisors_of_frequencies(tmp_path: Path) -> None:
    """Llama 3's scaling is a tensor of the file."""
    scaling = tiny_config("llama3")["rope_scaling"]
    path = small(tmp_path, rope_scaling=scaling)
    plain = 1e4 ** -(np.arange(32) / 32)
    wavelengths, old = 2 * np.pi / plain, scaling["original_max_position_embeddings"]
    smooth = np.clip((old / wavelengths - 1) / 3, 0, 1)  # factors of low and high frequencies are 1 and 4
    divisors = (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)
    extra = {"rope_freqs.weight": ("F32", (32,), divisors.tobytes())}
    file = as_gguf(path, "llama", lambda name: "F32", extra=extra)
    (config, model), (of_wide, wide) = load(file), load(path / "wide")
    found = Driver(config, model, 2).step(prompts()[:2])
    expected = Driver(of_wide, wide, 2).step(prompts()[:2])
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=2e-5, rtol=0)


def test_the_config_is_in_the_metadata(tmp_path: Path) -> None:
    more = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.bos_token_id": 1}
    file = as_gguf(small(tmp_path), "llama", lambda name: "Q8_0", more)
    config = ModelConfig.from_hf(*read_model_dir(file))
    expected = ModelConfig.from_hf(json.loads((tmp_path / "config.json").read_text()))
    names = ("layers", "norm", "vocab_size", "hidden_size", "intermediate_size", "num_kv_heads", "head_size")
    for name in (*names, "max_position_embeddings", "tie_word_embeddings", "architecture"):
        assert vars(config)[name] == vars(expected)[name], name
    assert (config.eos_token_ids, config.bos_token_id, config.dtype) == ((2, 5), 1, "bfloat16")
    overridden = ModelConfig.from_hf(*read_model_dir(file, {"max_position_embeddings": 64}))
    assert overridden.max_position_embeddings == 64


def test_types_have_their_names() -> None:
    """Those that the format has dropped, too (31 to 33, 36 to 38): files of theirs are still offered."""
    of_package = {kind.value: kind.name for kind in GGMLQuantizationType}
    assert TYPE_NAMES | {kind: name for kind, name in of_package.items() if kind in TYPE_NAMES} == TYPE_NAMES
    assert (TYPE_NAMES[31], TYPE_NAMES[36]) == ("Q4_0_4_4", "IQ4_NL_4_4")
    assert sorted(TYPE_NAMES) == list(range(len(TYPE_NAMES)))


@pytest.mark.parametrize(
    ("down", "usual", "num_parts"),
    [
        *(("Q6_K", "Q4_K", 1), ("Q5_0", "Q4_1", 3)),
        pytest.param("IQ4_NL", "IQ4_NL", 1, marks=pytest.mark.slow),
    ],
)
def test_a_converted_file_keeps_its_bits(
    down: str,
    usual: str,
    num_parts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    save, written = orbax_weights._save, []

    def saved(target: Path, arrays: dict[str, jax.Array], axes: Any) -> None:
        written.extend(array.nbytes for array in arrays.values() if array.dtype != "int4")
        save(target, arrays, axes)

    monkeypatch.setattr(orbax_weights, "_save", saved)
    source = small(tmp_path / "source", num_hidden_layers=1)
    file = as_gguf(source, "llama", lambda name: down if "down" in name else usual, num_parts=num_parts)
    file.with_name("mmproj.gguf").write_bytes(b"GGUF")
    with caplog.at_level(logging.INFO):
        convert(file, tmp_path / "out")
    for told in (f"tensors {usual} → ", "text only"):
        assert caplog.text.count(told) == 1, "once, though parameters are read in groups"
    config, _ = read_model_dir(file)
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    found, wanted = (flatten_model(load(path)[1])[1] for path in (tmp_path / "out", file))
    assert jax.tree.map(lambda array: array.dtype, found) == jax.tree.map(lambda array: array.dtype, wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    on_device = sum(num_bytes(array.shape, array.dtype) for array in jax.tree.leaves(found))
    assert sum(written) == on_device  # two numbers of 4 bits to a byte


def test_the_flag(tmp_path: Path) -> None:
    file = as_gguf(small(tmp_path, num_hidden_layers=1), "llama", lambda name: "Q8_0")
    assert load(file, quantization="gguf")[0].weight_kinds.kind.name == KINDS["Q8_0"]
    assert load(file, quantization="int8")[0].weight_kinds.kind.name == KINDS["Q8_0"]
    for name in ("awq", "fp8", "int4"):
        with pytest.raises(ConfigError, match=rf"--quantization {name}: .* quantized already, in the format GGUF"):
            load(file, quantization=name)


def test_the_flag_beside_what_was_converted(tmp_path: Path) -> None:
    """Its config.json has no quantization_config: the manifest says what the numbers are."""
    file = as_gguf(small(tmp_path / "source", num_hidden_layers=1), "llama", lambda name: "Q8_0")
    convert(file, tmp_path / "out")
    config, _ = read_model_dir(file)
    del config["quantization_config"]
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert load(tmp_path / "out", quantization="int8")[0].weight_kinds.kind.name == KINDS["Q8_0"]
    for name in ("gguf", "awq", "fp8", "w8a8_int8", "int4"):
        with pytest.raises(ConfigError, match=rf"^--quantization {name}: .* are quantized to {KINDS['Q8_0']}; leave"):
            load(tmp_path / "out", quantization=name)


def test_a_plain_file_is_quantized_while_it_loads(tmp_path: Path) -> None:
    file = as_gguf(small(tmp_path, num_hidden_layers=1), "llama", lambda name: "F16")
    _, model = load(file, quantization="int8")
    assert next(iter(weight_bytes(model))) == "int8 W8A16, a scale per channel"
    assert_equal(numbers(model), numbers(load(tmp_path / "wide", quantization="int8")[1]))


def _damaged(path: Path, how: str) -> Path:
    config = tiny_config("llama3", **SHAPE, num_hidden_layers=1)
    metadata = metadata_of(config, "llama")
    tensors = {"token_embd.weight": ("F32", (384, 256), bytes(384 * 1024))}
    version = 2 if how == "old" else 3
    match how:
        case "type":
            tensors["blk.0.ffn_up.weight"] = ("IQ3_S", (256, 256), bytes(256 * 110))
        case "architecture":
            metadata["general.architecture"] = "rwkv7"
        case "key":
            del metadata["llama.embedding_length"]
        case "nothing":
            tensors["blk.0.ffn_up_exps.weight"] = ("F32", (0, 256, 256), b"")
        case "rows":
            tensors["token_embd.weight"] = ("Q4_K", (384, 32), b"")
    file = write_gguf(path / "model.gguf", metadata, tensors, version)
    data = file.read_bytes()
    match how:
        case "truncated":
            file.write_bytes(data[:-100])
        case "header":
            file.write_bytes(data[:100])
        case "magic":
            file.write_bytes(b"GGML" + data[4:])
        case "version":
            file.write_bytes(data[:4] + struct.pack(">I", 3) + data[8:])
    return file


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "type",
            "tensor blk.0.ffn_up.weight in model.gguf has the GGUF type IQ3_S, which is not supported; supported",
        ),
        ("architecture", "general.architecture 'rwkv7' is not supported; supported: llama, qwen2"),
        ("key", "llama.embedding_length is missing from its metadata"),
        ("rows", "tensor token_embd.weight of type Q4_K has rows of 32 numbers, no multiple of 256"),
        ("nothing", "tensor blk.0.ffn_up_exps.weight has shape (0, 256, 256), and so no numbers. Download it again"),
        ("truncated", "is truncated: tensor token_embd.weight ends at byte"),
        ("header", "its header is longer than the file. Download it again"),
        ("magic", "is not a GGUF file"),
        ("version", "big-endian machine; supported: little-endian files of version 2 and 3"),
    ],
)
def test_bad_files(how: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(_damaged(tmp_path, how))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kind", "start"), [("Q8_0", 0), ("Q4_K", 0), ("Q4_K", 2), ("Q6_K", 208)])
def test_a_scale_that_is_no_number_is_named(kind: str, start: int, tmp_path: Path) -> None:
    blocks = drawn_blocks(kind, (4, 256), np.random.default_rng(0))
    blocks[1, 0, start : start + 2] = np.asarray([np.nan], np.float16).view(np.uint8)
    metadata = metadata_of(tiny_config("llama3", **SHAPE), "llama")
    tensors = {
        "token_embd.weight": ("F32", (4, 256), bytes(4096)),
        "blk.0.ffn_up.weight": (kind, (4, 256), blocks.tobytes()),
    }
    file, name = write_gguf(tmp_path / "model.gguf", metadata, tensors), "model.layers.0.mlp.up_proj.weight"
    stored = ModelConfig.from_hf(*read_model_dir(file)).quantization
    told = r"tensor blk\.0\.ffn_up\.weight in model\.gguf has scales that are not finite"
    with pytest.raises(ConfigError, match=told), Checkpoint(file) as checkpoint:
        read_matrix(checkpoint, find_matrix(name, checkpoint.tensors, stored))
