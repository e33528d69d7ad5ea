"""Mixtures of experts: their config, the router, the layer against a plain loop, and every way a file stores them."""

import importlib.util
import json
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.base.module import Context
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.layers.moe import SparseMLP, choose_experts
from palladio.model.loading import orbax_weights
from palladio.model.spec.layer_spec import RouterSpec, SparseSpec
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.model.driver import load, numbers
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights, write_json

FAMILIES = ["qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe"]
MLP_1 = "model.layers.1.mlp"


def read(family="qwen3_moe", without=(), **overrides):
    config = tiny_config(family, **overrides)
    return ModelConfig.from_hf({key: value for key, value in config.items() if key not in without})


def test_config():
    experts = read().experts
    assert (experts.num_experts, experts.num_places, experts.num_chosen, experts.intermediate_size) == (8, 8, 3, 20)
    assert experts.shared_intermediate_size is None
    assert [layer.mlp for layer in read().layers] == [SparseSpec(router=RouterSpec(renormalize=True))] * 2
    assert read("qwen2_moe").experts.shared_intermediate_size == 36
    assert not read(without=["norm_topk_prob"]).layers[0].mlp.router.renormalize
    assert read("mixtral").layers[0].mlp.router.renormalize
    assert read("mixtral").experts.intermediate_size == 36
    unlimited = read("mixtral", without=["sliding_window"])
    assert [layer.attention.window for layer in unlimited.layers] == [None, None]
    assert [rope.theta for rope in read("mixtral", without=["rope_theta"]).ropes] == [1e6]
    assert read("mixtral", without=["rms_norm_eps"]).norm.eps == read("mixtral", rms_norm_eps=None).norm.eps == 1e-5
    assert read(without=["num_experts"], num_local_experts=5).experts.num_experts == 5
    assert read("mixtral", without=["num_local_experts"], num_experts=5).experts.num_experts == 5
    assert read("qwen2_moe", sliding_window=0).layers == read("qwen2_moe").layers  # as transformers 5 writes it


@pytest.mark.parametrize(
    ("overrides", "sparse"),
    [
        ({"decoder_sparse_step": 2}, (False, True, False, True)),
        ({"decoder_sparse_step": 3}, (False, False, True, False)),
        ({"mlp_only_layers": [0, 3]}, (False, True, True, False)),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, (False, False, False, True)),
        ({"mlp_only_layers": None}, (True,) * 4),
    ],
)
def test_layers_with_experts(overrides, sparse):
    layers = read(num_hidden_layers=4, **overrides).layers
    assert tuple(isinstance(layer.mlp, SparseSpec) for layer in layers) == sparse


def test_a_mixture_without_sparse_layers_is_a_dense_model():
    assert read(mlp_only_layers=[0, 1]).experts is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is greater than num_experts 8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be a whole number of at least 1"),
        ({"num_experts": 0}, "num_experts must be"),
        ({"moe_intermediate_size": "wide"}, "moe_intermediate_size must be"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be"),
        ({"mlp_only_layers": 1}, "mlp_only_layers must be a list of layer numbers"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers must be"),
        ({"use_sliding_window": True}, "use_sliding_window: True is not supported"),
        ({"family": "glm4_moe", "topk_group": 5}, "topk_group 5 is greater than n_group 4"),
        ({"family": "glm4_moe", "n_group": 5}, "n_group 5 must divide 12 experts into groups of two or more"),
        ({"family": "glm4_moe", "n_group": 12}, "n_group 12 must divide 12 experts"),
        ({"family": "glm4_moe", "num_experts_per_tok": 7}, "num_experts_per_tok 7 is greater than the 6 experts of "),
        ({"family": "glm4_moe", "first_k_dense_replace": -1}, "first_k_dense_replace must be a whole number"),
        ({"family": "glm4_moe", "num_nextn_predict_layers": "one"}, "num_nextn_predict_layers must be"),
    ],
)
def test_bad_configs_name_the_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        read(**overrides)


@pytest.mark.parametrize(
    ("family", "key"),
    [
        *(("qwen3_moe", key) for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")),
        ("qwen2_moe", "shared_expert_intermediate_size"),
        ("mixtral", "num_local_experts"),
    ],
)
def test_missing_keys_are_named(family, key):
    with pytest.raises(ConfigError, match=f"^{key} is missing from config.json"):
        read(family, without=[key])


def test_the_router_is_exact_in_bfloat16_too():
    """Products of bfloat16 in float32: logits that differ by less than a bfloat16's last bit choose other experts."""
    rng = np.random.default_rng(0)
    x, router = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((40, 64), (64, 32)))
    logits = x.astype(np.float64) @ router.astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.argsort(-shares, axis=-1)[:, :4]
    weights, chosen = choose_experts(jnp.asarray(x), jnp.asarray(router), 4, RouterSpec(renormalize=False))
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(weights, np.take_along_axis(shares, expected, -1), rtol=1e-5)
    weights, _ = choose_experts(jnp.asarray(x), jnp.asarray(router), 4, RouterSpec(renormalize=True))
    np.testing.assert_allclose(np.sum(weights, -1), 1.0, rtol=1e-6)


def sparse_mlp(kernels=Kernels(), **overrides):
    """(layer, its config): of random weights."""
    config = read("qwen2_moe", **overrides)
    spec = config.layers[-1].mlp
    layer = SparseMLP(Context(jnp.float32, jnp.float32, nnx.Rngs(1)), config, spec, kernels, make_mesh(1))
    return layer, config.experts


def plain_loop(layer, experts, x):
    """What the layer should give, token by token, in float64."""
    params = layer.router, *layer.gate.params, *layer.up.params, *layer.down.params, *sum(layer.shared.params, ())
    router, gate, up, down, shared_in, shared_down, shared_gate = (np.asarray(p[...], np.float64) for p in params)

    def mlp(row, gate, up, down):
        inner = row @ gate
        return (inner / (1 + np.exp(-inner)) * (row @ up)) @ down

    out = []
    for row in np.asarray(x, np.float64):
        shares = np.exp(row @ router)
        shares /= shares.sum()
        chosen = np.argsort(-shares)[: experts.num_chosen]
        weights = shares[chosen] / (shares[chosen].sum() if layer.spec.router.renormalize else 1.0)
        total = mlp(row, shared_in[:, 0], shared_in[:, 1], shared_down) / (1 + np.exp(-(row @ shared_gate)))
        out.append(total + sum(w * mlp(row, gate[e], up[e], down[e]) for w, e in zip(weights, chosen, strict=True)))
    return np.array(out)


def compiled(layer):
    """The layer as it is now."""
    return jax.jit(lambda x, num_tokens: layer(x, num_tokens))


def rows(number, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((number, 48)), jnp.float32)


@pytest.mark.parametrize(
    ("overrides", "num_rows"),
    [
        ({}, 17),
        ({"norm_topk_prob": True}, 1),
        pytest.param({"num_experts_per_tok": 1}, 17, marks=pytest.mark.slow),  # as test_all_tokens_to_one_expert
        ({"num_experts_per_tok": 6}, 17),  # all of them
        pytest.param({"num_experts": 1, "num_experts_per_tok": 1}, 1, marks=pytest.mark.slow),
        pytest.param({"num_experts": 50}, 17, marks=pytest.mark.slow),  # more than there are rows for
    ],
    ids=str,
)
def test_a_plain_loop_gives_the_same(overrides, num_rows):
    layer, experts = sparse_mlp(**overrides)
    x = rows(num_rows)
    out = compiled(layer)(x, jnp.int32(num_rows))
    np.testing.assert_allclose(out, plain_loop(layer, experts, x), atol=2e-5, rtol=0)


@pytest.mark.parametrize("backend", ["reference", pytest.param("gpu_triton", marks=pytest.mark.slow)])
def test_other_backends_give_the_same(backend):
    """The Pallas kernel interpreted, with padding that goes to no group."""
    layer, experts = sparse_mlp(Kernels(backend, Target(interpret="plain")))
    x = rows(21)
    out = np.asarray(compiled(layer)(x, jnp.int32(19)))
    np.testing.assert_allclose(out[:19], plain_loop(layer, experts, np.asarray(x)[:19]), atol=2e-5, rtol=0)


def test_the_backend_goes_with_the_attention():
    backends = {"auto": "auto", "tpu": "auto", "gpu_mosaic": "auto", "gpu_triton": "gpu_triton", "xla": "xla"}
    assert {attention: Kernels(attention).grouped_matmul for attention in backends} == backends


@pytest.mark.parametrize("favourite", [0, pytest.param(2, marks=pytest.mark.slow), 5])
def test_all_tokens_to_one_expert(favourite):
    """Every other expert gets no row."""
    layer, experts = sparse_mlp(num_experts_per_tok=1)
    x = rows(33).at[:, 0].set(5.0)
    router = np.zeros((48, 6), np.float32)
    router[0, favourite] = 4.0
    layer.router[...] = jnp.asarray(router)
    _, chosen = choose_experts(x, layer.router[...], 1, layer.spec.router)
    assert set(np.asarray(chosen).ravel()) == {favourite}
    out = compiled(layer)(x, jnp.int32(33))
    np.testing.assert_allclose(out, plain_loop(layer, experts, x), atol=2e-5, rtol=0)


def test_padding_goes_to_no_expert_and_changes_no_token():
    layer, experts = sparse_mlp()
    x = np.array(rows(20))
    expected = plain_loop(layer, experts, x[:13])
    computed = compiled(layer)
    for padding in (0.0, 1e30, np.nan):
        padded = x.copy()
        padded[13:] = padding
        np.testing.assert_allclose(computed(padded, jnp.int32(13))[:13], expected, atol=2e-5, rtol=0)
    layer.shared = None
    computed = compiled(layer)
    assert np.abs(np.asarray(computed(x, jnp.int32(20)))[13:]).max() > 0.01
    np.testing.assert_array_equal(np.asarray(computed(x, jnp.int32(13)))[13:], 0.0)


def arrays(path, **options):
    return [np.asarray(leaf, np.float32) for leaf in flatten_model(load(path, **options)[1])[1]]


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def stacked(weights):
    """The same as transformers 5 holds it: all experts of a layer in one tensor, gate before up."""
    names = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
    out, found = {}, {}
    for name, value in weights.items():
        match = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            out[name.replace("block_sparse_moe", "mlp")] = value
        else:
            prefix = match[1].replace("block_sparse_moe", "mlp")
            found.setdefault(prefix, {}).setdefault(names[match[3]], {})[int(match[2])] = value
    for prefix, parts in found.items():
        gate, up, down = (np.stack([parts[kind][n] for n in sorted(parts[kind])]) for kind in ("gate", "up", "down"))
        out[f"{prefix}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        out[f"{prefix}.experts.down_proj"] = down
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_stacked_files_and_split_ones_give_the_same(family, tmp_path):
    path = make_checkpoint(tmp_path, family)
    expected = arrays(path)
    weights = stacked(load_file(path / "model.safetensors"))
    save_file(weights, path / "model.safetensors")
    assert_same(arrays(path), expected)

    name = next(name for name in weights if name.endswith("experts.down_proj"))
    save_file(weights | {name: weights[name][:-1]}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} in .* requires \({weights[name].shape[0]}, "):
        load(path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
@pytest.mark.torch
@pytest.mark.parametrize(
    "family", [name if name == "qwen3_moe" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_both_layouts_as_transformers_writes_them(family, tmp_path):
    from tests.model import hf_oracle

    path = make_checkpoint(tmp_path / "ours", family)
    for stacked_together in (False, True):
        out = tmp_path / str(stacked_together)
        hf_oracle.save(path, out, stacked=stacked_together)
        names = load_file(out / "model.safetensors")
        assert any(name.endswith("experts.gate_up_proj") for name in names) == stacked_together
        assert_same(arrays(out), arrays(path))


def test_where_a_stored_tensor_lies(tmp_path):
    _, model = load(make_checkpoint(tmp_path, "qwen2_moe"))
    stored, mlp = tiny_weights(tiny_config("qwen2_moe")), model.layers[1].mlp
    assert mlp.gate.values[...].shape == mlp.up.values[...].shape == (6, 48, 28)
    for number, (part, param) in enumerate((("gate", mlp.gate), ("up", mlp.up))):
        np.testing.assert_array_equal(param.values[...][4], stored[f"{MLP_1}.experts.4.{part}_proj.weight"].T)
        shared = stored[f"{MLP_1}.shared_expert.{part}_proj.weight"]
        np.testing.assert_array_equal(mlp.shared.gate_up.values[...][:, number], shared.T)
    np.testing.assert_array_equal(mlp.down.values[...][5], stored[f"{MLP_1}.experts.5.down_proj.weight"].T)
    np.testing.assert_array_equal(mlp.router[...], stored[f"{MLP_1}.gate.weight"].T)


def change(path, family, update):
    stored = tiny_weights(tiny_config(family))
    update(stored)
    save_file(stored, path / "model.safetensors")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda w: w.pop(f"{MLP_1}.experts.5.up_proj.weight"), r"missing keys .*experts\.5\.up_proj\.weight"),
        (
            lambda w: w.update({f"{MLP_1}.experts.6.up_proj.weight": w[f"{MLP_1}.experts.5.up_proj.weight"].copy()}),
            r"unexpected keys in checkpoint .*experts\.6\.up_proj",
        ),
        (lambda w: w.pop(f"{MLP_1}.gate.weight"), r"missing keys in checkpoint .*1\.mlp\.gate\.weight"),
        (
            lambda w: w.update({f"{MLP_1}.gate.weight": np.ones((5, 48), np.float32)}),
            r"has shape \(5, 48\), config\.json requires \(6, 48\)",
        ),
        (lambda w: w.update({f"{MLP_1}.experts.gate_up_proj": np.ones((6, 56, 48), np.float32)}), "missing keys"),
        (lambda w: w.pop("model.layers.0.mlp.up_proj.weight"), r"missing keys in checkpoint .*0\.mlp\.up_proj"),
    ],
)
def test_wrong_tensors_are_named(update, message, tmp_path):
    path = make_checkpoint(tmp_path, "qwen2_moe")
    change(path, "qwen2_moe", update)
    with pytest.raises(CheckpointError, match=message):
        load(path)


def test_float8_experts(tmp_path):
    """Each with scales of its own, as published."""
    path = make_checkpoint(tmp_path, "qwen3_moe")
    stored = tiny_weights(tiny_config("qwen3_moe"))
    expected = dict(stored)
    for name in [name for name in stored if ".experts." in name]:
        shape = stored[name].shape
        scale = np.random.default_rng(1).uniform(0.5, 2.0, (-(-shape[0] // 16), -(-shape[1] // 16)))
        full = np.repeat(np.repeat(scale.astype(np.float32), 16, 0), 16, 1)[: shape[0], : shape[1]]
        stored[name] = (stored[name] / full).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.astype(np.float32)
        expected[name] = stored[name].astype(np.float32) * full
    save_file(expected, path / "model.safetensors")
    plain = numbers(load(path)[1])
    write_safetensors(path / "model.safetensors", stored)
    quantization = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    write_json(path / "config.json", tiny_config("qwen3_moe", quantization_config=quantization))
    for flag in (None, "dequantize"):
        found = numbers(load(path, quantization=flag)[1])
        assert found.keys() == plain.keys()
        for key, array in plain.items():
            np.testing.assert_array_equal(found[key], array)


def test_dummy_weights_are_as_lively_as_those_of_a_plain_mlp(tmp_path):
    write_json(tmp_path / "config.json", tiny_config("qwen2_moe", hidden_size=96))
    _, model = load(tmp_path, load_format="dummy")
    dense, sparse = model.layers[0].mlp, model.layers[1].mlp
    for one, other in ((dense.gate_up.kernel.values, sparse.gate.values), (dense.gate_up.kernel.values, sparse.router)):
        assert np.std(other[...]) == pytest.approx(float(np.std(one[...])), rel=0.1)
    assert np.std(sparse.down.values[...]) == pytest.approx(28**-0.5, rel=0.1)
    assert np.std(sparse.down.values[...][0] - sparse.down.values[...][1]) > 0.1, "experts differ"


@pytest.mark.parametrize(
    "family", ["qwen2_moe", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mixtral", "glm4_moe"))]
)
def test_converted_checkpoints_hold_the_same(family, tmp_path):
    source, out = make_checkpoint(tmp_path / "source", family), tmp_path / "out"
    config = ModelConfig.from_hf(*read_model_dir(source))
    orbax_weights.convert(source, out, config, "float32", lambda done, total: None)
    assert_same(arrays(out, load_format="orbax"), arrays(source))
    fewer = dict.fromkeys(("num_experts", "num_local_experts"), 5) | ({"n_group": 1} if family == "glm4_moe" else {})
    (out / "config.json").write_text(json.dumps(tiny_config(family, **fewer | {"topk_group": 1})))
    with pytest.raises(CheckpointError, match=r"keys in checkpoint .*mlp\.gate"):
        load(out)
