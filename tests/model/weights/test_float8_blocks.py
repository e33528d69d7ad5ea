"""FP8 in blocks, with activations rounded to float8 too (--quantization w8a8_fp8)."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from palladio.model.base.sharding import make_mesh
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import unrounded, weight_bytes, widenings
from palladio.model.loading.manifest import MANIFEST
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, load, numbers
from tests.model.loading.test_quantized_weights import convert, to_fp8
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint

W8A8, W8A16 = "fp8 W8A8, a scale per 16 inputs", "fp8 W8A16, a scale per 16 inputs"
GROUP = 16


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    path = make_checkpoint(tmp_path_factory.mktemp("blocks"), "qwen3", intermediate_size=192, **heads)
    to_fp8(path, "block")
    return path


@pytest.mark.parametrize("attention", ["auto", "gpu_triton"])
def test_a_product_rounds_each_group_of_a_row(attention: str, source: Path) -> None:
    target = Target() if attention == "auto" else Target("gpu", "9.0", interpret="plain")
    _, model = load(source, quantization="w8a8_fp8", kernels=Kernels(attention, target))
    wide = numbers(load(source / "wide")[1])
    for name, weight in (("mlp.gate_up", model.layers[0].mlp.gate_up), ("mlp.down", model.layers[0].mlp.down)):
        matrix = wide[f"layers.0.{name}.kernel"]
        np.testing.assert_array_equal(numbers(model)[f"layers.0.{name}.kernel"], matrix)
        x = np.random.default_rng(0).normal(size=(5, matrix.shape[0])).astype(np.float32)
        groups = x.reshape(5, -1, GROUP)
        factors = np.abs(groups).max(axis=2, keepdims=True) * np.float32(1 / 448)
        rounded = ((groups / factors).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * factors).reshape(x.shape)
        out = np.asarray(jax.jit(weight.kernel.matmul)(x))
        np.testing.assert_allclose(out, np.tensordot(rounded, matrix, 1), rtol=0, atol=1e-5 * np.abs(out).max())
        assert np.abs(out - np.tensordot(x, matrix, 1)).max() > 1e-3 * np.abs(out).max(), "not rounded"


def test_the_kind_that_is_told_is_the_one_that_runs(source: Path, tmp_path: Path) -> None:
    """Experts keep the bits of activations; so do TPUs, which have no such kernel."""
    for target, kind in ((Target(), W8A8), (Target("gpu", "9.0"), W8A8), (Target("tpu", "7x"), W8A16)):
        _, model = load(source, quantization="w8a8_fp8", kernels=Kernels(target=target))
        assert {each for each in weight_bytes(model) if "fp8" in each} == {kind}
        told = f"8 matrices ({W8A16}) do not have activations rounded to 8 bits, since there is no kernel of"
        assert [line.rpartition(" groups for ")[0] for line in unrounded(model)] == ([told] if kind == W8A16 else [])
    experts = make_checkpoint(tmp_path, "qwen3_moe")
    to_fp8(experts, "block", keep=lambda name: "experts" not in name and "o_proj" not in name)
    _, model = load(experts, quantization="w8a8_fp8")
    assert {each for each in weight_bytes(model) if "fp8" in each} == {W8A8, W8A16}
    why = "experts have no products of 8 bits on both sides"
    told = f"matrices ({W8A16}) do not have activations rounded to 8 bits, since {why}"
    assert [line.partition(" ")[2] for line in unrounded(model)] == [told]


def test_what_is_widened_is_told(source: Path) -> None:
    _, model = load(source, quantization="w8a8_fp8")
    (line,) = widenings(model, jnp.bfloat16)
    assert line.startswith(f"8 matrices ({W8A8}) are widened in each product: ")
    assert line.endswith("since there is no kernel for CPU")
    assert "GB of float32" in line
    _, model = load(source, quantization="w8a8_fp8", kernels=Kernels(target=Target("gpu", "9.0")))
    assert widenings(model, jnp.bfloat16) == []


def logits_and_kinds(path: str, sizes: list[int]) -> list[tuple[list[list[float]], list[str]]]:
    """Of a prompt, on each number of devices."""
    found = []
    for size in sizes:
        mesh = make_mesh(size)
        config, model = load(Path(path), mesh=mesh, quantization="w8a8_fp8")
        driver = Driver(TensorLayout.of(config, size).config, model, 1, mesh=mesh)
        logits = driver.step(prompts()[:1])[0][:, : config.vocab_size].tolist()
        found.append((logits, [kind for kind in weight_bytes(model) if "fp8" in kind]))
    return found


def test_devices(source: Path) -> None:
    """Of 192 columns, 4 devices have three groups each; 8 would cut some, so there that projection keeps W8A16."""
    (one, kinds), (four, same), (_, mixed) = call_with_devices(__name__, "logits_and_kinds", str(source), [1, 4, 8])
    assert np.std(one) > 0.1
    np.testing.assert_allclose(four, one, atol=0.02 * float(np.std(one)), rtol=0)
    assert kinds == same == [W8A8]
    assert set(mixed) == {W8A8, W8A16}


def test_a_converted_checkpoint_keeps_the_kind(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", "w8a8_fp8")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["parameters"]["layers.0.mlp.down.kernel.values"]["kind"] == W8A8
    expected, found = numbers(load(source)[1]), numbers(load(tmp_path / "out")[1])
    assert expected.keys() == found.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    assert W8A8 in weight_bytes(load(tmp_path / "out")[1])
    _, model = load(tmp_path / "out", kernels=Kernels(target=Target("tpu", "7x")))
    assert W8A16 in weight_bytes(model), "a device that cannot round rows reads it too"
