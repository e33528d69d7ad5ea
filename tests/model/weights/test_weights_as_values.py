"""Each kind of weight: what it multiplies to, what it is made of, and how devices cut its groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.module import Context
from palladio.model.base.sharding import make_mesh
from palladio.model.loading.layout.parameters import at_rest
from palladio.model.weights.file_matrix import FileMatrix
from palladio.model.weights.kinds import WeightKind, WeightKinds
from palladio.model.weights.scaled import Scaled
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels

KINDS = {
    "int8": WeightKind("int8"),
    "fp8": WeightKind("float8_e4m3fn"),
    "fp8 in groups": WeightKind("float8_e4m3fn", 32),
    "int4 in groups": WeightKind("int4", 32),
    "int4 with zeros": WeightKind("int4", 32, has_zeros=True),
    "int4 by channel": WeightKind("int4", None, has_zeros=True),
    "int8 with zeros": WeightKind("int8", 16, has_zeros=True),
    "fp4": WeightKind("float4_e2m1fn", 32),
}
FLOATS_OF_4_BITS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, np.nan, -6, -4, -3, -2, -1.5, -1, -0.5)
IN, OUT = 80, (2, 24)  # a group of 32 inputs is left with 16


def weight_of(
    kind: WeightKind, shape: tuple[int, ...], inputs: int, kernels: Kernels = Kernels()
) -> tuple[Weight, np.ndarray]:
    """A weight made of random numbers, and the numbers that it stands for."""
    context = Context(jnp.float32, jnp.float32, None)
    dense = Dense(context, shape, (None,) * len(shape), inputs)
    groups = None if kind.group is None else (kind.group, kind.group)
    weight = Scaled(dense, kind, groups, kernels, make_mesh(1))
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    parts = weight.made_of(jnp.asarray(numbers))
    for name, part in zip(weight.part_names, parts, strict=True):
        param = getattr(weight, name)
        setattr(weight, name, param.replace(at_rest(part, param)))

    def wide(factors: object) -> np.ndarray:
        found = np.asarray(factors, np.float32)
        if kind.group is None:
            found = np.expand_dims(found, inputs)
        return np.repeat(found, kind.group or shape[inputs], inputs).take(range(shape[inputs]), inputs)

    values = np.asarray(parts[0]).astype(np.float32)
    if kind.is_float4:
        values = np.asarray(FLOATS_OF_4_BITS, np.float32)[values.astype(np.int32) & 15]
    factors = wide(parts[1])
    found = (values - (wide(parts[2]) if kind.has_zeros else 0)) * factors
    step = factors  # half of it is the largest error of whole numbers
    if kind.storage.startswith("float"):
        step = np.abs(numbers) / (8 if kind.storage == "float8_e4m3fn" else 2) + factors
    assert (np.abs(found - numbers) <= 0.51 * step).all()
    return weight, found


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_products(kind: WeightKind) -> None:
    weight, wide = weight_of(kind, (IN, *OUT), 0)
    x = np.random.default_rng(1).normal(size=(5, IN)).astype(np.float32)
    expected = np.einsum("ti,iab->tab", x.astype(np.float64), wide.astype(np.float64))
    np.testing.assert_allclose(weight.matmul(jnp.asarray(x)), expected, atol=1e-4)
    half = weight.matmul(jnp.asarray(x, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(half, np.float32), expected, atol=0.3)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tables_are_looked_up_and_multiplied_with(kind: WeightKind) -> None:
    weight, wide = weight_of(kind, (30, IN), 1)
    ids = jnp.asarray([3, 0, 29, 29])
    np.testing.assert_allclose(weight.take(ids, jnp.float32), wide[np.asarray(ids)], rtol=1e-6)
    assert weight.take(ids, jnp.bfloat16).dtype == jnp.bfloat16
    x = np.random.default_rng(1).normal(size=(5, IN)).astype(np.float32)
    out = weight.matmul(jnp.asarray(x, jnp.bfloat16), out_dtype=jnp.float32)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(weight.matmul(jnp.asarray(x)), x @ wide.T, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_experts(kind: WeightKind) -> None:
    weight, wide = weight_of(kind, (3, IN, 24), 1)
    x = np.random.default_rng(1).normal(size=(9, IN)).astype(np.float32)
    out = weight.grouped_matmul(jnp.asarray(x), jnp.asarray([4, 0, 5], jnp.int32), Kernels(), weight.arrays())
    np.testing.assert_allclose(out, np.concatenate([x[:4] @ wide[0], x[4:] @ wide[2]]), atol=1e-4)


@pytest.mark.parametrize("storage", ["int8", "float8_e4m3fn"])
def test_activations_of_8_bits(storage: Any) -> None:
    """Each row of x is rounded by its largest number; products of experts keep x as it is."""
    kind = WeightKind(storage, has_zeros=storage == "int8", activation_bits=8)
    weight, wide = weight_of(kind, (IN, *OUT), 0)
    x = (np.random.default_rng(1).normal(size=(5, IN)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    largest = {"int8": 127, "float8_e4m3fn": 448}[storage]
    factors = np.abs(x).max(1, keepdims=True) / np.float32(largest)
    rounded = np.rint(x / factors) if storage == "int8" else np.asarray((x / factors).astype(storage), np.float32)
    assert np.abs(rounded * factors - x).max() > 1e-3  # what is looked for can be seen
    expected = np.einsum("ti,iab->tab", (rounded * factors).astype(np.float64), wide.astype(np.float64))
    np.testing.assert_allclose(weight.matmul(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    zeros = weight.matmul(jnp.zeros((2, IN)))
    assert not np.asarray(zeros).any()
    lowered = jax.jit(lambda x, *arrays: weight.matmul(x, arrays=arrays)).lower(x, *weight.arrays()).as_text()
    (product,) = (line for line in lowered.splitlines() if "dot_general" in line)
    assert product.count({"int8": "xi8>", "float8_e4m3fn": "xf8E4M3FN>"}[storage]) == 2


def test_weights_and_activations_have_dtypes_of_their_own() -> None:
    dense = Dense(Context(activations=jnp.float32, weights=jnp.bfloat16, rngs=None), (4, 6), (None, None), 0)
    assert dense.values.dtype == jnp.bfloat16
    numbers = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.bfloat16)
    dense.values = dense.values.replace(numbers)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)
    out = dense.matmul(x)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, x @ numbers.astype(jnp.float32), rtol=1e-5)
    assert dense.take(jnp.asarray([1]), jnp.float32).dtype == jnp.float32


def test_int8_of_a_files_matrix() -> None:
    """Each row by its largest number; a row of zeros stays zeros; experts each by themselves."""
    numbers = np.random.default_rng(0).normal(size=(3, 50, 40)).astype(np.float32) * 0.01
    numbers[1, 7] = 0
    weight, _ = weight_of(KINDS["int8"], (3, 40, 50), 1)
    values, scales = weight.read(FileMatrix(numbers))
    assert (values.dtype, values.shape, scales.shape) == (np.int8, (3, 50, 40), (3, 50))
    largest = np.abs(numbers).max(-1)
    np.testing.assert_array_equal(scales, largest / np.float32(127))
    assert (np.abs(values.astype(np.int32)).max(-1) == np.where(largest == 0, 0, 127)).all()
    assert (np.abs(values * scales[..., None] - numbers) <= 0.501 * scales[..., None]).all()


@pytest.mark.parametrize(
    ("size", "parts", "group", "expected"),
    [
        (768, 2, 128, (768, 128)),
        (768, 4, 128, (768, 64)),  # 192 a device: groups of 64 cost 3 % more, whole ones would be 33 %
        (768, 8, 128, (768, 32)),
        (2880, 4, 128, (3072, 128)),  # 720 a device: padding to 768 is less than scales of 16
        (2880, 8, 128, (3072, 128)),
        (2880, 8, 32, (3072, 32)),
        (2880, 1, 128, (2880, 128)),
        (14336, 8, 128, (14336, 128)),
        (100, 3, None, (102, 100)),
    ],
)
def test_devices_get_whole_groups(size: int, parts: int, group: int | None, expected: tuple[int, int]) -> None:
    padded, cut = WeightKind("float8_e4m3fn", group).cut(size, parts)
    assert (padded, cut) == expected
    assert padded % parts == 0
    if group is not None and parts > 1:
        assert padded // parts % cut == group % cut == 0


def test_which_weights_are_dense() -> None:
    kinds = WeightKinds(KINDS["int8"], ("layers.3.mlp.down.kernel", "layers.{layer}.attention.qkv.kernel"))
    assert kinds.of("layers.3.mlp.down.kernel") is None
    assert kinds.of("layers.13.mlp.down.kernel") == KINDS["int8"]
    assert kinds.of("layers.13.attention.qkv.kernel") is None
    assert WeightKinds().of("embedding.table") is None
