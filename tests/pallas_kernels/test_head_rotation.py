"""The rotation of heads on a TPU: numbers and layout, interpreted."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.head_rotation import can_rotate_heads, rotate_heads
from palladio.pallas_kernels.target import Target

PLAIN, SIMULATED = Target(interpret="plain"), Target(interpret="on_wait")


def projected_heads(sizes, dtype):
    """Random ones, and angles. Args: sizes: tokens, kv heads, and queries of each."""
    num_tokens, num_kv_heads, group = sizes
    rng = np.random.default_rng(num_tokens)
    heads = jnp.asarray(rng.normal(size=(num_tokens, num_kv_heads, group + 2, 128)), dtype)
    angles = rng.uniform(-3, 3, (num_tokens, 64)).astype(np.float32)
    return heads, jnp.cos(angles), jnp.sin(angles)


@pytest.mark.parametrize(
    ("sizes", "dtype", "tolerance", "target"),
    [
        ((48, 2, 3), jnp.float32, 1e-6, PLAIN),
        pytest.param((272, 1, 1), jnp.bfloat16, 2**-7, PLAIN, marks=pytest.mark.slow),
        pytest.param((512, 3, 2), jnp.bfloat16, 2**-7, SIMULATED, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_rotates_as_defined(sizes, dtype, tolerance, target):
    """One block of several tiles, many of one, and several of many; within one unit in the last place."""
    heads, cos, sin = projected_heads(sizes, dtype)
    assert can_rotate_heads(heads.shape, 128, backend="tpu", target=target)
    for found, meant in zip(
        rotate_heads(heads, cos, sin, target=target),
        rotate_heads(heads, cos, sin, backend="reference"),
        strict=True,
    ):
        assert found.shape == meant.shape
        assert found.dtype == heads.dtype
        np.testing.assert_allclose(found.astype(jnp.float32), meant.astype(jnp.float32), rtol=tolerance, atol=tolerance)


def test_the_definition_is_the_models_own():
    heads, cos, sin = projected_heads((5, 2, 3), jnp.float32)
    q, k, v = rotate_heads(heads, cos, sin, backend="reference")
    wide = heads[:, :, :-1]
    turned = wide[..., :64] + 1j * wide[..., 64:]
    turned *= (cos + 1j * sin)[:, None, None]
    meant = jnp.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(q, meant[:, :, :3].reshape(5, 6, 128), atol=1e-5)
    np.testing.assert_allclose(k, meant[:, :, 3], atol=1e-5)
    np.testing.assert_array_equal(v, heads[:, :, 4])


@pytest.mark.parametrize(
    ("shape", "rotated"), [((64, 2, 4, 64), 64), ((64, 2, 4, 128), 64), ((24, 2, 4, 128), 128), ((64, 2, 4, 256), 256)]
)
def test_other_heads_are_left_to_xla(shape, rotated):
    assert not can_rotate_heads(shape, rotated, backend="tpu", target=Target("tpu", "v6e"))


@pytest.mark.parametrize(("backend", "platform"), [("auto", "cpu"), ("gpu_triton", "gpu"), ("xla", "tpu")])
def test_other_backends_leave_it_to_xla(backend, platform):
    assert not can_rotate_heads((64, 2, 4, 128), 128, backend=backend, target=Target(platform))
