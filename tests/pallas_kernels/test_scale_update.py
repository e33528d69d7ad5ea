"""The write into a cache of int8: numbers, the scales beside them, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.ragged_paged_attention import (
    ScaledPages,
    kv_page_shape,
    scale_page_shape,
    unpack_scales,
)
from palladio.pallas_kernels.target import Target

QUICK_SCALES = ("reference", (32, 3)), ("xla", (32, 3)), ("xla", (64, 2))


def scaled_pages(num_pages: int, num_heads: int, page_size: int) -> ScaledPages:
    """Random ones, of heads of 64."""
    rng = np.random.default_rng(page_size)
    rows = rng.integers(-127, 128, kv_page_shape(num_pages, num_heads, page_size, 64), np.int8)
    scales = rng.uniform(1, 2, scale_page_shape(num_pages, num_heads, page_size)).astype(np.float32)
    return ScaledPages(jnp.asarray(rows), jnp.asarray(scales))


@pytest.mark.parametrize(
    ("backend", "page_size", "num_heads"),
    [
        pytest.param(backend, *sizes, marks=() if (backend, sizes) in QUICK_SCALES else pytest.mark.slow)
        for backend in ("reference", "xla")
        for sizes in ((8, 3), (32, 1), (32, 3), (64, 2), (128, 1), (256, 2))
    ],
)
def test_int8_keeps_a_scale_for_each_token_and_head(backend, page_size, num_heads):
    """What is stored, times its scale, is the row to a half of a 127th of its largest number; the rest is as before."""
    rng, T = np.random.default_rng(num_heads), 6
    pages = scaled_pages(4, num_heads, page_size)
    k, v = rng.normal(size=(2, T, num_heads, 64)) * 10.0 ** rng.integers(-6, 7, (2, T, num_heads, 1))
    k[0, 0] = 0
    page_ids, offsets = np.array([3, 1, 2, 2, 3, 0]), np.array([0, page_size - 1, 3, 4, 1, 0])
    writes = CacheWrites(jnp.asarray(page_ids), jnp.asarray(offsets))
    out = jax.jit(kv_cache_update, static_argnames="backend")(pages, k, v, writes, backend=backend)
    before, after = (np.asarray(unpack_scales(one.scales, num_heads, page_size)) for one in (pages, out))
    written = np.zeros((4, page_size), bool)
    for token in range(T - 1):
        page, row = page_ids[token], offsets[token]
        written[page, row] = True
        for kind, exact in enumerate((k[token], v[token])):
            held = np.asarray(out.rows)[page, :, row, 64 * kind : 64 * kind + 64].astype(np.float64)
            step = np.abs(exact).max(-1, keepdims=True) / 127
            assert (np.abs(held * after[page, kind, :, row, None] - exact) <= step * 0.5001).all()
            assert (np.abs(held).max(-1) == np.where(step[:, 0] > 0, 127, 0)).all()
    kept = ~written[1:]
    np.testing.assert_array_equal(after.transpose(0, 3, 1, 2)[1:][kept], before.transpose(0, 3, 1, 2)[1:][kept])
    old, new = (np.asarray(one.rows).transpose(0, 2, 1, 3)[1:][kept] for one in (pages, out))
    np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("mode", "page_size", "num_heads", "one_each"),
    [
        ("plain", 32, 3, False),
        *(
            pytest.param(*sizes, marks=pytest.mark.slow)
            for sizes in (
                ("on_wait", 32, 8, True),
                *(("plain", 32, 3, True), ("plain", 64, 2, False), ("plain", 64, 2, True)),
                *(("eager", 32, 1, False), ("plain", 256, 1, False)),
            )
        ),
    ],
)
def test_the_tpu_kernel_writes_the_scales_that_xla_writes(mode, page_size, num_heads, one_each):
    S, pages = page_size, scaled_pages(24, num_heads, page_size)
    if one_each:  # more than the kernel takes at once
        page_ids = np.where(np.arange(21) % 5 == 3, 0, np.arange(21) + 2)
        offsets = np.where(page_ids, np.arange(21) * 7 % S, 0)
    else:
        page_ids = np.repeat([4, 2, 7, 5, 6, 1, 0], [5, S, 9, 4, S, 9, 3])
        offsets = np.concatenate([range(S - 5, S), range(S), range(9), range(11, 15), range(S), range(9), [0, 0, 0]])
    k, v = np.random.default_rng(1).normal(size=(2, len(page_ids), num_heads, 64)).astype(np.float32)
    writes = CacheWrites(jnp.asarray(page_ids, jnp.int32), jnp.asarray(offsets, jnp.int32), one_each=one_each)
    update = jax.jit(kv_cache_update, static_argnames=("backend", "target"))
    expected = update(pages, k, v, writes, backend="xla")
    out = update(pages, k, v, writes.planned(), backend="tpu", target=Target("tpu", "v6e", mode))
    np.testing.assert_array_equal(out.rows[1:], expected.rows[1:])
    found, wanted = (np.asarray(unpack_scales(one.scales, num_heads, S))[1:] for one in (out, expected))
    np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(found, np.asarray(unpack_scales(pages.scales, num_heads, S))[1:])
