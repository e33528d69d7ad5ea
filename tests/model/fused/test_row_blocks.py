"""Half a layer in one call of our C++: the numbers of the modules, for every kind of layer, and when it is not used."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.flags.default_model import default_model_path
from palladio.model.fused import row_blocks
from palladio.model.layers.moe import SparseMLP
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.cpu_native import block_calls, calls
from palladio.pallas_kernels.cpu_native.forms import Form
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target
from tests.model.driver import Driver, load
from tests.native_forms import every_form, load_every_form, needs_compiler
from tests.tiny_model import FAMILIES, make_checkpoint

TARGET = Target.of(jax.devices("cpu")[0])
NATIVE = Kernels("cpu_native", dataclasses.replace(TARGET, is_native=True, has_native_int8=True))
pytestmark = needs_compiler
PROMPTS = [[5, 9, 7, 30, 31, 40, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], [7], [33, 3]]
XLAS = {"gpt_oss"}  # whose layers blocks do not take
BOTH = ("cohere", "gemma2")  # between them: layer norms, parallel ones, four a layer; soft caps, windows, tanh


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    load_every_form()


class Calls:
    """How often each half of a layer was asked for, and done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.done = 0, 0
        jax.clear_caches()  # layers of one structure are traced once
        for name in ("attention_rows", "mlp_rows"):
            monkeypatch.setattr(row_blocks, name, self._counted(getattr(row_blocks, name)))

    def _counted(self, function):
        def call(*args):
            result = function(*args)
            self.asked += 1
            self.done += result is not None
            return result

        return call


def logits_of(path: Path, kernels: Kernels, num_decodes: int, **options) -> np.ndarray:
    """Of a step with prompts of several lengths, and of decode steps after it."""
    config, model = load(path, kernels=kernels, **options)
    driver = Driver(config, model, len(PROMPTS))
    found = [*driver.step(PROMPTS).values()]
    for number in range(num_decodes):
        found += driver.step([[number + 3]] * len(PROMPTS), kind="decode").values()
    return np.concatenate(found)


def compare(path: Path, num_decodes: int, **options) -> None:
    xla, native = (logits_of(path, kernels, num_decodes, **options) for kernels in (Kernels("xla", TARGET), NATIVE))
    real = np.isfinite(xla)
    np.testing.assert_array_equal(real, np.isfinite(native))
    np.testing.assert_allclose(native[real], xla[real], atol=1e-5 * np.abs(xla[real]).max())


@every_form
@pytest.mark.parametrize("family", BOTH)
def test_blocks_have_the_numbers_of_the_modules(
    family: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Calls(monkeypatch)
    for name in ("attention_block", "mlp_block"):
        call = functools.partial(getattr(block_calls, name), form=form)
        monkeypatch.setattr(row_blocks, name, call)
    compare(make_checkpoint(tmp_path, family), 0)
    assert made.asked == made.done > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_of_every_family(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Calls(monkeypatch)
    path = make_checkpoint(tmp_path, family)
    compare(path, 3)
    config, model = load(path, kernels=NATIVE)
    has_dense = any(not isinstance(layer.mlp, SparseMLP) for layer in model.layers)
    assert made.done > 0 or (config.latent is not None and not has_dense) or family in XLAS


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["bfloat16", "int8"])
def test_blocks_of_the_embedded_model_in_fewer_bits(bits: str) -> None:
    """XLA rounds rows to fewer bits in other ways; the likeliest tokens are the same."""
    options = {"quantization": "int8"} if bits == "int8" else {"weights_dtype": jnp.bfloat16}
    xla, native = (logits_of(default_model_path(), each, 3, **options) for each in (Kernels("xla", TARGET), NATIVE))
    assert (xla.argmax(-1) == native.argmax(-1)).mean() > 0.95
    assert np.abs(xla - native).max() < 0.2


@every_form
def test_a_row_does_not_depend_on_those_beside_it(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many there are, and so how many threads compute them, nor on whether they are rows of padding."""
    jax.clear_caches()
    monkeypatch.setattr(row_blocks, "mlp_block", functools.partial(block_calls.mlp_block, form=form))
    _, model = load(default_model_path(), kernels=NATIVE)
    mlp = model.layers[0].mlp
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(61, 128)), jnp.float32)

    def computed(x: jax.Array) -> np.ndarray:
        out = row_blocks.mlp_rows(mlp, (model.layers[0].mlp_norm, None), 1.0, x, x)
        assert out is not None
        return np.asarray(out)

    whole = computed(rows)
    usual = rows + mlp(model.layers[0].mlp_norm(rows))  # of 384 inputs: more than rows go through together
    np.testing.assert_allclose(whole, usual, atol=1e-4 * float(jnp.abs(usual).max()))
    for count in (1, 2, 3, 4, 5, 6, 7, 16):
        np.testing.assert_array_equal(computed(rows[-count:]), whole[-count:])
    padded = computed(rows.at[20:].set(rows[19]))
    np.testing.assert_array_equal(padded, whole[[*range(20), *[19] * 41]])
    text = jax.jit(lambda x: model.layers[0].feed(x, x, None)).lower(rows).as_text()  # type: ignore[arg-type]
    assert text.count(calls.MLP_BLOCK) == 1
    assert "dot_general" not in text
    more = jax.ShapeDtypeStruct((row_blocks.MOST_ROWS + 1, 128), jnp.float32)
    assert calls.MLP_BLOCK not in jax.jit(lambda x: model.layers[0].feed(x, x, None)).lower(more).as_text()


@pytest.mark.parametrize(("dtype", "takes_more"), [(jnp.bfloat16, False), (jnp.float32, True)])
def test_blocks_take_no_more_rows_of_bfloat16_than_products_do(
    dtype: Any, takes_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AMX, XLA multiplies more of them faster, but not more of float32."""
    table = NarrowProducts(min_native_hidden_size=128, native_rows=8)
    monkeypatch.setattr(NarrowProducts, "of", lambda target: table)
    _, model = load(default_model_path(), kernels=NATIVE, weights_dtype=dtype)
    mlp, norms = model.layers[0].mlp, (model.layers[0].mlp_norm, None)
    rows = [jax.ShapeDtypeStruct((count, 128), jnp.float32) for count in (8, 9)]
    takes = [jax.eval_shape(lambda x: row_blocks.mlp_rows(mlp, norms, 1.0, x, x), x) is not None for x in rows]
    assert takes == [True, takes_more]


def test_blocks_take_no_more_rows_of_int8_than_products_do(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = load(default_model_path(), kernels=NATIVE, quantization="int8")
    mlp, norms = model.layers[0].mlp, (model.layers[0].mlp_norm, None)
    rows = [jax.ShapeDtypeStruct((count, 128), jnp.float32) for count in (8, 9)]
    table = NarrowProducts(native_rows=64, native_int8_rows=8)
    monkeypatch.setattr(NarrowProducts, "of", lambda target: table)
    takes = [jax.eval_shape(lambda x: row_blocks.mlp_rows(mlp, norms, 1.0, x, x), x) is not None for x in rows]
    assert takes == [True, False]


def test_arguments_that_do_not_fit_are_an_error() -> None:
    """And no division by the cache's KV heads, of which there are none."""
    nothing = np.zeros(0, np.float32)
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 8), (4, 16, 8))]
    call = jax.ffi.ffi_call(calls.ATTENTION_BLOCK, results)
    names = "heads", "head_size", "pairs", "head_norm", "window", "qkv_bits", "output_bits"
    numbers = dict.fromkeys(names, np.int64(4))
    reals = dict.fromkeys(("eps", "added", "factor", "head_eps", "head_added", "scale", "soft_cap"), np.float32(0))
    flags = dict.fromkeys(("is_centered", "is_head_centered", "is_interleaved", "has_gate"), False)
    pages = jnp.zeros((4, 16, 8), jnp.float32)  # without KV heads
    with pytest.raises(jax.errors.JaxRuntimeError, match="do not fit together"):
        jax.block_until_ready(call(jnp.zeros((2, 8)), pages, *[nothing] * 25, **numbers, **reals, **flags))
