"""Products of float8 and float8 in blocks against numpy, which rounds the same way; kernels are interpreted."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from palladio.pallas_kernels.block_matmul import block_matmul, gpu_triton, refusal_of_kernels, rounded_groups
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.interpret_mosaic import BLOCKS, interpret

INTERPRETED = Target("gpu", "9.0", interpret="plain")
FLOAT8 = ml_dtypes.float8_e4m3fn


def _oracle(rows, matrix, scales, group):
    """Rounds as DeepSeek's act_quant does, up to the last bit of a factor, and adds up in float64."""
    D = rows.shape[1]
    wide = rows.astype(np.float32)
    out = np.zeros((len(rows), len(matrix)))
    for number, start in enumerate(range(0, D, group)):
        part = wide[:, start : start + group]
        factors = np.abs(part).max(axis=1) * np.float32(1 / 448)
        numbers = (part / np.where(factors == 0, 1, factors)[:, None]).astype(FLOAT8).astype(np.float64)
        products = numbers @ matrix[:, start : start + group].astype(np.float64).T
        out += products * factors[:, None].astype(np.float64) * scales[number].astype(np.float64)
    return out


def _make(M, D, F, group, dtype="float32"):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(M, D)) * np.exp(rng.normal(size=(M, -(-D // group))) * 2).repeat(group, 1)[:, :D]
    rows = rows.astype(dtype)
    rows[M // 2, :group] = 0
    matrix = np.clip(rng.normal(size=(F, D)) * 100, -448, 448).astype(FLOAT8)
    scales = rng.uniform(0.5, 2.0, (-(-D // group), F)).astype(np.float32)
    return rows, matrix, scales


@pytest.mark.parametrize(
    ("backend", "M", "D", "F", "group"),
    [
        ("gpu_triton", 1, 1280, 96, 128),  # in parts
        ("gpu_triton", 40, 256, 200, 128),
        ("gpu_triton", 130, 320, 128, 64),
        ("gpu_triton", 5, 200, 72, 128),
        ("reference", 5, 200, 72, 128),
        ("reference", 70, 256, 128, 32),
    ],
)
def test_matches_an_oracle_that_rounds_alike(backend, M, D, F, group):
    rows, matrix, scales = _make(M, D, F, group)
    expected = _oracle(rows, matrix, scales, group)
    call = functools.partial(block_matmul, group=group, out_dtype=jnp.float32, backend=backend, target=INTERPRETED)
    out = jax.jit(call)(rows, jnp.asarray(matrix), scales)
    assert out.dtype == jnp.float32
    largest = np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(out / largest, expected / largest, atol=2e-6)
    exact = rows.astype(np.float64) @ (matrix.astype(np.float64) * scales.repeat(group, 0)[:D].T).T
    error = np.abs(expected - exact).max() / np.abs(exact).max()
    assert 1e-3 < error < 5e-2, "rounded to 8 bits, and no worse"


def test_rounding_is_that_of_each_group():
    rows, _, _ = _make(6, 384, 1, 128)
    numbers, factors = jax.jit(functools.partial(rounded_groups, group=128))(rows)
    assert numbers.dtype == jnp.float8_e4m3fn
    assert factors.shape == (3, 6)
    largest = np.abs(rows.reshape(6, 3, 128)).max(axis=2)
    np.testing.assert_array_equal(factors.T, largest * np.float32(1 / 448))
    assert not np.any(np.asarray(numbers[3, :128], np.float32)), "a group of zeros stays one"
    top = np.abs(np.asarray(numbers, np.float32).reshape(6, 3, 128)).max(axis=2)
    np.testing.assert_array_equal(top, np.where(largest == 0, 0, 448))


def test_a_row_does_not_depend_on_the_others():
    """In one shape of step, as with --deterministic."""
    rows, matrix, scales = _make(40, 256, 64, 128)
    call = functools.partial(block_matmul, group=128, out_dtype=jnp.float32, backend="gpu_triton", target=INTERPRETED)
    one = jax.jit(call)(rows, jnp.asarray(matrix), scales)
    alone = np.zeros_like(rows)
    alone[7] = rows[7]
    np.testing.assert_array_equal(one[7], jax.jit(call)(alone, jnp.asarray(matrix), scales)[7])


def test_few_rows_are_multiplied_in_parts():
    assert [gpu_triton.tiles_of(1, 4096, F, 128).parts for F in (4096, 6144, 28672)] == [5, 3, 1]
    assert gpu_triton.tiles_of(2048, 4096, 4096, 128).parts == 1


def test_misuse_is_an_error():
    rows, matrix, scales = (jnp.asarray(array) for array in _make(4, 256, 64, 128))
    options = {"group": 128, "out_dtype": jnp.float32}
    with pytest.raises(ValueError, match="do not fit together"):
        block_matmul(rows, matrix, scales[:1], **options)
    with pytest.raises(ValueError, match="do not fit together"):
        block_matmul(rows, matrix.astype(jnp.float32), scales, **options)
    hopper = {"backend": "gpu_mosaic", "target": Target("gpu", "9.0")}
    with pytest.raises(NotImplementedError, match="4 rows are fewer than 64"):
        block_matmul(rows, matrix, scales, group=128, out_dtype=jnp.bfloat16, **hopper)
    with pytest.raises(NotImplementedError, match="results are bfloat16"):
        block_matmul(rows, matrix, scales, **options, **hopper)
    with pytest.raises(NotImplementedError, match=r"this GPU has 8\.0"):
        block_matmul(rows, matrix, scales, **options, backend="gpu_mosaic", target=Target("gpu", "8.0"))


def test_who_has_kernels():
    assert refusal_of_kernels(128, Target("gpu", "9.0")) is None
    assert refusal_of_kernels(24, Target("gpu", "9.0")) == "groups of 24 are no multiple of 16"
    assert refusal_of_kernels(128, Target("cpu")) == "there is no kernel for CPU"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 cannot interpret it")
@pytest.mark.parametrize("mode", ["plain", "eager"])
def test_the_kernel_for_hopper_matches_the_reference(mode):
    """eager looks for races too."""
    found = interpret(mode, list(BLOCKS))
    assert len(found) == len(BLOCKS)
    assert max(found.values()) < 0.01, found
