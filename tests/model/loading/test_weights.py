"""Loading: every format a checkpoint comes in gives the same parameters; every damage is an error that says where."""

import json
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from palladio.model.base.errors import CheckpointError
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.loading.readers.tensor_names import EMBEDDING, HEAD
from tests.model.driver import load, numbers
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights, to_bfloat16, write_json

Q0 = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
FILE = "model.safetensors"


@pytest.fixture
def path(tmp_path):
    return make_checkpoint(tmp_path, "qwen2")


def weights(family="qwen2"):
    return tiny_weights(tiny_config(family))


def leaves(path, **options):
    return [np.asarray(leaf, np.float32) for leaf in flatten_model(load(path, **options)[1])[1]]


def assert_same(one, other, **tolerance):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 0, "atol": 0} | tolerance))


def test_fused_layout(path):
    """Each kv head's query heads, then its key, then its value; gate, then up; kernels [in, out]."""
    stored, (_, model) = weights(), load(path)
    layer, prefix = model.layers[0], "model.layers.0."
    q, k, v = (stored[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv")
    kernel = np.asarray(layer.attention.qkv.kernel.values[...])
    assert kernel.shape == (48, 2, 5, 8)
    np.testing.assert_array_equal(kernel[:, 1, :3].reshape(48, -1), q[24:].T)
    np.testing.assert_array_equal(kernel[:, 1, 3], k[8:].T)
    np.testing.assert_array_equal(kernel[:, 1, 4], v[8:].T)
    np.testing.assert_array_equal(
        np.asarray(layer.attention.qkv.bias[...])[1, 4], stored[f"{prefix}self_attn.v_proj.bias"][8:]
    )
    np.testing.assert_array_equal(
        np.asarray(layer.mlp.gate_up.kernel.values[...])[:, 1], stored[f"{prefix}mlp.up_proj.weight"].T
    )
    down = np.asarray(layer.mlp.down.kernel.values[...])
    np.testing.assert_array_equal(down, stored[f"{prefix}mlp.down_proj.weight"].T)


def test_flatten_round_trip(path):
    _, model = load(path)
    structure, arrays = flatten_model(model)
    assert isinstance(arrays, tuple)
    assert all(isinstance(array, jax.Array) for array in arrays)
    again = flatten_model(unflatten_model(structure, arrays))[1]
    assert all(a is b for a, b in zip(arrays, again, strict=True))


def test_progress_counts_every_parameter(path):
    calls = []
    load(path, progress=lambda done, total: calls.append((done, total)))
    total = len(flatten_model(load(path)[1])[1])
    assert calls == [(n + 1, total) for n in range(total)]


@pytest.mark.parametrize("indexed", [True, False])
def test_sharded_files(path, indexed):
    expected, stored = leaves(path), weights()
    (path / "model.safetensors").unlink()
    names = sorted(stored)
    parts = {f"model-0000{n + 1}-of-00003.safetensors": names[n::3] for n in range(3)}
    for file, part in parts.items():
        save_file({name: stored[name] for name in part}, path / file)
    if indexed:
        weight_map = {name: file for file, part in parts.items() for name in part}
        write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    assert_same(leaves(path), expected)
    (path / "model-00002-of-00003.safetensors").unlink()
    message = "model-00002-of-00003.safetensors is missing" if indexed else "missing keys in checkpoint"
    with pytest.raises(CheckpointError, match=message):
        load(path)


@pytest.mark.parametrize("stored_as", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_dtype_to_any(path, stored_as, dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if stored_as == "bfloat16" else stored_as)
    exact = leaves(path)
    write_safetensors(path / "model.safetensors", {n: w.astype(kind) for n, w in weights().items()})
    _, model = load(path, dtype=jnp.dtype(dtype))
    arrays = flatten_model(model)[1]
    assert {array.dtype for array in arrays} == {jnp.dtype(dtype)}
    assert_same([np.asarray(a, np.float32) for a in arrays], exact, rtol=1e-2, atol=1e-6)


def test_bfloat16_is_exact_in_float32(path):
    stored = to_bfloat16(weights())
    save_file(stored, path / "model.safetensors")
    np.testing.assert_array_equal(
        np.asarray(load(path)[1].embedding.table.values[...]), stored["model.embed_tokens.weight"].astype(np.float32)
    )


@pytest.mark.parametrize("block", [None, [16, 32]])
def test_float8_stays_float8_or_is_dequantized(path, block):
    """Blocks that do not divide the matrix, one scale a block; or one scale a tensor."""
    stored, expected = weights(), weights()
    for name in [name for name in stored if name.endswith("proj.weight")]:
        w = stored[name]
        rows, columns = block or w.shape
        grid = (-(-w.shape[0] // rows), -(-w.shape[1] // columns))
        scale = np.random.default_rng(1).uniform(0.5, 2.0, grid).astype(np.float32)
        full = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: w.shape[0], : w.shape[1]]
        stored[name] = (w / full).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale if block else scale.reshape(())
        expected[name] = stored[name].astype(np.float32) * full
    save_file(expected, path / "model.safetensors")
    plain = numbers(load(path)[1])
    write_safetensors(path / "model.safetensors", stored)
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    write_json(path / "config.json", tiny_config("qwen2", quantization_config=quantization))
    for flag, dtypes in ((None, {"float32", "float8_e4m3fn"}), ("dequantize", {"float32"})):
        _, model = load(path, quantization=flag)
        assert {array.dtype.name for array in flatten_model(model)[1]} == dtypes
        found = numbers(model)
        assert found.keys() == plain.keys()
        for name, array in plain.items():
            np.testing.assert_array_equal(found[name], array)

    wrong = stored | {f"{Q0}_scale_inv": np.ones((9, 9), np.float32)}
    write_safetensors(path / "model.safetensors", wrong)
    with pytest.raises(CheckpointError, match=re.escape(f"{Q0}_scale_inv in model.safetensors has shape (9, 9)")):
        load(path)
    del wrong[f"{Q0}_scale_inv"]
    write_safetensors(path / "model.safetensors", wrong)
    with pytest.raises(CheckpointError, match=r"is float8, but .*q_proj\.weight_scale_inv is missing"):
        load(path)


def test_tied_head(tmp_path):
    path = make_checkpoint(tmp_path, "qwen2_tied")
    expected = leaves(path)
    stored = weights("qwen2_tied")
    save_file(stored | {HEAD: stored[EMBEDDING]}, path / FILE)  # as some do
    assert_same(leaves(path), expected)
    save_file({**{n: w for n, w in stored.items() if n != EMBEDDING}, HEAD: stored[EMBEDDING]}, path / FILE)
    assert_same(leaves(path), expected)
    save_file(stored | {HEAD: np.ones((1, 1), np.float32)}, path / FILE)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight in .* has shape \(1, 1\)"):
        load(path)
    save_file(stored, path / FILE)
    hidden = jnp.ones((1, 48))
    model = load(path)[1]
    np.testing.assert_allclose(model.logits(hidden), hidden @ model.embedding.table.values[...].T, rtol=1e-4)


def test_old_rotary_buffers_are_ignored(path):
    expected = leaves(path)
    buffer = {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file(weights() | buffer, path / "model.safetensors")
    assert_same(leaves(path), expected)


def test_padded_vocabulary(path):
    model = load(path)[1]
    hidden = jnp.ones((2, 48))
    logits = model.logits(hidden, num_valid_tokens=380)
    assert logits.dtype == jnp.float32
    assert np.isneginf(logits[:, 380:]).all()
    np.testing.assert_array_equal(logits[:, :380], model.logits(hidden)[:, :380])


def _rewrite(path, change):
    stored = weights()
    change(stored)
    save_file(stored, path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(NORM), f"missing keys in checkpoint .*{NORM}"),
        (lambda w: [w.pop(n) for n in list(w) if "mlp" in n], "and 1 more .*config.json"),
        (
            lambda w: w.update({"model.layers.2.extra": w[NORM]}),
            "unexpected keys in checkpoint .*: tensor model.layers.2.extra in model.saf",
        ),
        (
            lambda w: w.update({Q0: w[Q0][:-1]}),
            rf"{Q0} in model.safetensors has shape \(47, 48\), .* requires \(48, 48",
        ),
        (lambda w: w.update({Q0 + "_scale_inv": w[NORM]}), "q_proj.weight_scale_inv"),
        (lambda w: w.update({NORM: w[NORM].astype(np.int32)}), f"{NORM} in model.safetensors has dtype I32"),
    ],
)
def test_wrong_tensors(path, change, message):
    _rewrite(path, change)
    with pytest.raises(CheckpointError, match=message):
        load(path)


def test_duplicate_tensors(path):
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    save_file({NORM: weights()[NORM]}, path / "model-2.safetensors")
    with pytest.raises(CheckpointError, match=rf"{NORM} in model-2.safetensors is also in model-1.safetensors"):
        load(path)


def test_mistrals_second_copy_is_not_a_duplicate(path):
    expected = leaves(path)
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    save_file({NORM: weights()[NORM]}, path / "consolidated.safetensors")
    assert_same(leaves(path), expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-100], "is truncated: tensor .* ends at byte .* Download it again"),
        (lambda raw: raw[:5], "truncated .* Download it again"),
        (lambda raw: b"", "cannot read"),
        (lambda raw: b"\xff" * 8 + raw[8:], "header is longer than the file. Download it again"),
        (lambda raw: raw[:8] + b"x" + raw[9:], "corrupt header: .* Download it again"),
        (lambda raw: raw.replace(b'"F32"', b'"F16"', 1), "is corrupt: tensor .* cannot have .* Download it again"),
        (lambda raw: raw.replace(b'"F32"', b'"F64"', 1), "is corrupt: tensor .* cannot have"),
        (lambda raw: raw.replace(b'"shape"', b'"sharp"', 1), "corrupt header"),
    ],
)
def test_damaged_file(path, damage, message):
    file = path / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=message):
        load(path)


def test_no_weights(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="convert it to safetensors"):
        load(path)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"weight_map": 3})])
def test_damaged_index(path, content):
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"cannot read .*index\.json|index\.json must contain"):
        load(path)


def test_dummy_weights(tmp_path):
    write_json(tmp_path / "config.json", tiny_config("llama_biased"))
    one, same, other = (leaves(tmp_path, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert_same(one, same)
    assert any((a != b).any() for a, b in zip(one, other, strict=True))
    assert all(np.isfinite(a).all() for a in one)
