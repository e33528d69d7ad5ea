"""Weights of bfloat16 on a CPU: what they multiply to, how they lie, and that XLA:CPU multiplies them as they lie."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer

from palladio.flags.default_model import default_model_path
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.loading import orbax_weights
from palladio.model.loading.load_model import weight_bytes
from palladio.model.weights.narrow import Narrow
from palladio.model.weights.weight import Weight
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, narrow_grouped_matmul, narrow_matmul
from palladio.pallas_kernels.target import Target
from tests.model.driver import Driver, load
from tests.tiny_model import make_checkpoint

RNG = np.random.default_rng(0)
BFLOAT16 = jnp.bfloat16


def rows_of(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("mixture"), "qwen3_moe")


@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("outputs", [(24,), (2, 12)])
def test_products(num_rows: int, outputs: tuple[int, ...]) -> None:
    rows, matrix = rows_of(num_rows, 40), rows_of(*outputs, 40).astype(BFLOAT16)
    out = narrow_matmul(rows, matrix)
    assert (out.dtype, out.shape) == (jnp.float32, (num_rows, *outputs))
    np.testing.assert_allclose(out, narrow_matmul(rows, matrix, backend="reference"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(4, 0, 3, 1), (0, 0, 0, 9), (0, 0, 0, 0), (1, 1, 1, 1), (30, 0, 41, 2)])
def test_products_of_experts(sizes: tuple[int, ...]) -> None:
    rows, matrices = rows_of(max(10, sum(sizes)), 40), rows_of(4, 24, 40).astype(BFLOAT16)
    bits, counts = jax.lax.bitcast_convert_type(matrices, jnp.uint16), jnp.asarray(sizes, jnp.int32)
    out = narrow_grouped_matmul(rows, bits, counts)
    expected = narrow_grouped_matmul(rows, bits, counts, backend="reference")
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert not np.asarray(out[sum(sizes) :]).any()


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"rows \(3, 40\) and matrix bfloat16\(24, 41\) do not fit together"):
        narrow_matmul(rows_of(3, 40), jnp.zeros((24, 41), BFLOAT16))
    with pytest.raises(ValueError, match=r"bits bfloat16\(4, 24, 40\) do not fit together"):
        narrow_grouped_matmul(rows_of(3, 40), jnp.zeros((4, 24, 40), BFLOAT16), jnp.zeros(4, jnp.int32))


def narrow_weights(model: Any) -> dict[str, Narrow]:
    found = {".".join(map(str, keys)): node for keys, node in nnx.iter_graph(model) if isinstance(node, Weight)}
    assert all(isinstance(weight, Narrow) for weight in found.values())
    return found


def test_a_file_is_read_as_it_is(mixture: Path, tmp_path: Path) -> None:
    """The numbers of the dense model, rounded; from a converted checkpoint and by random values the same forms."""
    _, dense = load(mixture)
    config, narrow = load(mixture, weights_dtype=BFLOAT16)
    wide = {".".join(map(str, keys)): node for keys, node in nnx.iter_graph(dense) if isinstance(node, Weight)}
    for name, weight in narrow_weights(narrow).items():
        values = np.asarray(weight.values[...])
        if values.ndim == 3 and values.dtype == np.uint16:
            values = values.view(ml_dtypes.bfloat16)
        assert values.dtype == ml_dtypes.bfloat16, name
        expected = np.asarray(wide[name].values[...]).astype(ml_dtypes.bfloat16)
        expected = np.moveaxis(expected, wide[name].inputs, -1)
        np.testing.assert_array_equal(values.reshape(expected.shape), expected, err_msg=name)
    orbax_weights.convert(mixture, tmp_path / "out", config, "bfloat16", lambda *step: None)
    _, again = load(tmp_path / "out", weights_dtype=BFLOAT16)
    for one, other in zip(flatten_model(narrow)[1], flatten_model(again)[1], strict=True):
        np.testing.assert_array_equal(one, other)
    _, random = load(mixture, weights_dtype=BFLOAT16, load_format="dummy")
    shapes = [(leaf.shape, leaf.dtype) for leaf in flatten_model(random)[1]]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in flatten_model(narrow)[1]]
    assert set(weight_bytes(narrow)) == {"bfloat16"}


def test_no_step_widens_a_matrix(mixture: Path) -> None:
    """XLA:CPU multiplies each matrix as it lies. A version of JAX that loses this is 10 to 50 times slower."""
    config, model = load(mixture, weights_dtype=BFLOAT16)
    driver, batches = Driver(config, model, 1), []

    def keep(batch: Any) -> Any:
        batches.append(batch)
        return batch

    driver.step([[3, 4, 5]], change=keep)
    structure, leaves = flatten_model(model)

    def step(leaves: Any, cache: Any, batch: Any) -> Any:
        model = unflatten_model(structure, leaves)
        hidden, cache = model(batch, cache)
        return model.logits(hidden[:1]), cache  # one row

    text = jax.jit(step).lower(leaves, driver.cache, batches[0]).compile().as_text()
    weights = narrow_weights(model)
    products = [weight for name, weight in weights.items() if "embedding" not in name]
    assert '"kind":"__ynn_fusion"' in text
    multiplied = re.findall(r"\(\S+: bf16\[\d+,\d+\], \S+: bf16\[\d+,\d+\]\) -> f32\[", text)
    assert len(multiplied) == len(products) == 1 + 2 * 5  # the head, and each layer's
    matrices = set()
    for weight in products:
        *outputs, inputs = weight.values.shape[1:] if weight.values.dtype == jnp.uint16 else weight.values.shape
        matrices |= {(int(np.prod(outputs)), inputs), (inputs, int(np.prod(outputs)))}
    written = {tuple(map(int, sizes.split(","))) for sizes in re.findall(r"-> f32\[(\d+,\d+)\]", text)}
    assert not written & matrices


def test_how_a_cpu_multiplies_is_part_of_the_programs_key(mixture: Path) -> None:
    _, model = load(mixture, weights_dtype=BFLOAT16)
    before = flatten_model(model)[0]
    for weight in narrow_weights(model).values():
        weight.products = dataclasses.replace(weight.products, min_rows=4)
    assert flatten_model(model)[0] != before


@pytest.mark.slow  # tests/runtime/core/test_auto_dtype.py has its distributions
def test_the_embedded_models_choices_are_those_of_float32() -> None:
    """Its weights are bfloat16 in the file; rows are rounded to bfloat16 before each product."""
    path = default_model_path()
    text = (path / "README.md").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids[:128]
    logs = []
    for dtype in (jnp.float32, BFLOAT16):
        config, model = load(path, weights_dtype=dtype)
        logits = Driver(config, model, 1).step([ids])[0].astype(np.float64)
        logs.append(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    assert 0 < divergence.mean() < 5e-4  # 1.4e-4 with AVX-512
    assert (logs[0].argmax(-1) == logs[1].argmax(-1)).mean() >= 0.98


@pytest.mark.parametrize("kind", ["amx_bf16", "avx512_bf16", "avx512", "avx2"])
def test_every_feature_has_a_table(kind: str) -> None:
    products = NarrowProducts.of(Target("cpu", kind))
    assert products.min_rows >= 2
    assert products.min_hidden_size is not None
    assert NarrowProducts.of(Target("cpu", "")).min_hidden_size is None
    assert products.min_native_hidden_size == read_model_dir(default_model_path())[0]["hidden_size"]
    assert products.min_native_hidden_size < products.min_hidden_size
    assert ModelConfig.from_hf(*read_model_dir(default_model_path())).dtype == "bfloat16"
