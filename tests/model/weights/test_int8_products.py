"""int8 weights on a CPU whose features are known: how near products are, and that no weight is widened for them."""

import re
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.weights.kinds import WeightKind
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, byte_matmul
from palladio.pallas_kernels.target import Target
from tests.model.weights.test_weights_as_values import weight_of

KERNELS = Kernels("xla", Target("cpu", "avx2"))
RNG = np.random.default_rng(0)
FORMS = [((80, 2, 24), 0), ((30, 80), 1)]  # projections, and a table


@pytest.mark.parametrize(("shape", "inputs"), FORMS)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("bits", "largest"), [pytest.param(8, 127, marks=pytest.mark.slow), (16, 127 * 256)])
def test_rows_are_rounded_by_their_largest_number(
    shape: tuple[int, ...], inputs: int, has_zeros: bool, bits: int, largest: int
) -> None:
    kind = WeightKind("int8", has_zeros=has_zeros, activation_bits=bits)
    weight, wide = weight_of(kind, shape, inputs, KERNELS)
    matrix = np.moveaxis(wide.astype(np.float64), inputs, 0).reshape(80, -1)
    x = (RNG.normal(size=(5, 80)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    x[3, 7] = -2 * np.abs(x[3]).max()  # a largest number that is negative
    out = np.asarray(weight.matmul(jnp.asarray(x)), np.float64).reshape(5, -1)
    half_a_step = np.abs(x).max(1, keepdims=True) / largest / 2
    bound = half_a_step * np.abs(matrix).sum(0) * 1.01 + 1e-5 * (np.abs(x) @ np.abs(matrix))
    error = np.abs(out - x.astype(np.float64) @ matrix)
    assert (error <= bound).all()
    assert error.max() > 0
    one = np.asarray(weight.matmul(jnp.asarray(x[3:4]))).reshape(-1)
    np.testing.assert_allclose(one, out[3], rtol=1e-6)  # whatever else is in a step
    assert not np.asarray(weight.matmul(jnp.zeros((1, 80)))).any()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_the_product_is_the_plain_definition(bits: Literal[8, 16], has_zeros: bool) -> None:
    rows, scales = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((3, 40), (2, 12)))
    matrix, zeros = (jnp.asarray(RNG.integers(-128, 128, shape), jnp.int8) for shape in ((2, 12, 40), (2, 12)))
    out, expected = (
        byte_matmul(rows, matrix, scales, zeros if has_zeros else None, bits=bits, backend=name)
        for name in ("auto", "reference")
    )
    assert (out.dtype, out.shape) == (jnp.float32, (3, 2, 12))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-2)


def test_what_does_not_fit_is_refused() -> None:
    rows, matrix, scales = jnp.zeros((3, 40)), jnp.zeros((24, 40), jnp.int8), jnp.zeros(24)
    wide = matrix.astype(jnp.float32)
    for wrong in ((rows[:, 1:], matrix, scales), (rows, wide, scales), (rows, matrix, scales[1:])):
        with pytest.raises(ValueError, match="do not fit together"):
            byte_matmul(*wrong)
    with pytest.raises(NotImplementedError):
        byte_matmul(rows, matrix, scales, None, NarrowProducts(native_int8_rows=2), backend="cpu_native")


@pytest.mark.parametrize(("shape", "inputs"), FORMS)
@pytest.mark.parametrize("bits", [8, 16])
def test_no_product_widens_a_weight(shape: tuple[int, ...], inputs: int, bits: int) -> None:
    weight, _ = weight_of(WeightKind("int8", activation_bits=bits), shape, inputs, KERNELS)

    def product(x: jax.Array, arrays: tuple[jax.Array, ...]) -> jax.Array:
        return weight.matmul(x, arrays=arrays)

    text = jax.jit(product).lower(jnp.ones((1, 80)), weight.arrays()).compile().as_text()
    assert '"kind":"__ynn_fusion"' in text
    assert re.search(r"\(\S+: s8\[\d+,80\], \S+: s8\[\d+,\d+\]\) -> s32\[", text)
    written = {tuple(sorted(map(int, sizes.split(",")))) for sizes in re.findall(r"-> [fsu]32\[([\d,]+)\]", text)}
    assert not written & {tuple(sorted(shape)), tuple(sorted((80, int(np.prod(shape)) // 80)))}
