"""The cache write: right cells, nothing else, and in place."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.ragged_paged_attention import kv_page_shape, padded_head_size
from palladio.pallas_kernels.target import Target
from tests.pairwise import pairwise

UPDATED = jax.jit(kv_cache_update, static_argnames=("backend", "target"))
PLANNED = jax.jit(CacheWrites.planned)


@pytest.mark.parametrize(
    ("backend", "head_size", "num_tokens"), pairwise(["xla", "reference", "auto"], [16, 64, 96, 128], [1, 5, 40])
)
def test_writes_only_its_rows(backend, head_size, num_tokens):
    rng = np.random.default_rng(0)
    shape = kv_page_shape(7, 2, 8, head_size)
    cache = rng.normal(size=shape).astype(np.float32)
    k, v = rng.normal(size=(2, num_tokens, 2, head_size)).astype(np.float32)
    cells = rng.permutation(np.arange(8, 56))[:num_tokens]
    half = padded_head_size(head_size)
    expected = cache.copy()
    for token, (page, row) in enumerate(zip(cells // 8, cells % 8, strict=True)):
        expected[page, :, row] = 0
        expected[page, :, row, :head_size], expected[page, :, row, half : half + head_size] = k[token], v[token]
    out = UPDATED(jnp.asarray(cache), k, v, CacheWrites(cells // 8, cells % 8), backend=backend)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_padding_touches_only_page_0(backend):
    cache = jnp.ones(kv_page_shape(3, 2, 4, 64))
    rows = jnp.arange(3.0)[:, None, None] * jnp.ones((3, 2, 64))
    out = UPDATED(cache, rows, rows, CacheWrites(jnp.array([2, 0, 0]), jnp.array([1, 0, 0])), backend=backend)
    np.testing.assert_array_equal(out[1], 1)
    np.testing.assert_array_equal(out[2, :, 1], 0)
    np.testing.assert_array_equal(out[2, :, 2:], 1)


@pytest.mark.parametrize("num_tokens", [1, 16, 300])
def test_in_place_when_donated(num_tokens):
    shape = kv_page_shape(64, 2, 16, 64)
    cache = jax.ShapeDtypeStruct(shape, jnp.float32)
    row = jax.ShapeDtypeStruct((num_tokens, 2, 64), jnp.float32)
    ids = jax.ShapeDtypeStruct((num_tokens,), jnp.int32)
    compiled = jax.jit(kv_cache_update, donate_argnums=0).lower(cache, row, row, CacheWrites(ids, ids)).compile()
    text = compiled.as_text()
    assert "input_output_alias={ {}: (0" in text
    copies = re.findall(r"f32\[64,2,16,128\]\S* (?:copy|transpose|convert)\(", text)
    assert not copies
    assert compiled.memory_analysis().temp_size_in_bytes < np.prod(shape) * 4


@pytest.mark.parametrize(
    ("mode", "num_tokens", "num_heads"),
    [
        ("plain", 65, 1),
        ("on_wait", 16, 2),
        *(
            pytest.param(*sizes, marks=pytest.mark.slow)
            for sizes in (("plain", 1, 2), ("on_wait", 17, 24), ("eager", 19, 1))
        ),
    ],
)
def test_the_tpu_kernel_writes_single_rows_in_any_number(mode, num_tokens, num_heads):
    """24 heads are more than its buffers take at once; every fifth token is padding."""
    rng, S = np.random.default_rng(num_tokens), 16
    cache = jnp.asarray(rng.normal(size=kv_page_shape(num_tokens + 3, num_heads, S, 64)), "bfloat16")
    pages = np.where(np.arange(num_tokens) % 5 == 3, 0, rng.permutation(num_tokens) + 2)
    offsets = np.where(pages, rng.integers(0, S, num_tokens), 0)
    k, v = rng.normal(size=(2, num_tokens, num_heads, 64)).astype(np.float32)
    writes = CacheWrites(jnp.asarray(pages, jnp.int32), jnp.asarray(offsets, jnp.int32), one_each=True)
    expected = UPDATED(cache, k, v, writes, backend="xla")
    out = UPDATED(cache, k, v, writes, backend="tpu", target=Target("tpu", "v6e", mode))
    np.testing.assert_array_equal(out[1:].astype(np.float32), expected[1:].astype(np.float32))
    assert not np.array_equal(out[1:].astype(np.float32), cache[1:].astype(np.float32))


@pytest.mark.parametrize(
    ("mode", "dtype", "one_each"),
    pairwise(["plain", "on_wait", "eager"], ["float32", "bfloat16", "float8_e4m3fn"], [False, True]),
)
def test_the_tpu_kernel_writes_what_xla_writes(mode, dtype, one_each):
    if mode != "plain" and dtype in ("float32", "float8_e4m3fn"):
        pytest.skip("the simulator's time is better spent on the others")
    rng, S = np.random.default_rng(1), 32
    cache = jnp.asarray(rng.normal(size=kv_page_shape(9, 2, S, 64)) * 10, dtype)
    if one_each:
        pages, offsets = np.array([3, 1, 8, 0, 5, 0]), np.array([0, S - 1, 17, 0, 16, 3])
    else:  # a request over three pages, one inside a page, one that fills a page, one among the last tokens, padding
        pages = np.repeat([4, 2, 7, 5, 6, 1, 0], [5, S, 9, 4, S, 9, 3])
        offsets = np.concatenate([range(S - 5, S), range(S), range(9), range(11, 15), range(S), range(9), [0, 0, 0]])
    T = len(pages)
    k, v = rng.normal(size=(2, T, 2, 64)).astype(np.float32)
    writes = CacheWrites(jnp.asarray(pages, jnp.int32), jnp.asarray(offsets, jnp.int32), one_each=one_each)
    scales = {"k_scale": 0.02, "v_scale": 0.03}
    expected = UPDATED(cache, k, v, writes, backend="xla", **scales)
    out = UPDATED(cache, k, v, PLANNED(writes), backend="tpu", target=Target("tpu", "v6e", mode), **scales)
    np.testing.assert_array_equal(out[1:].astype(np.float32), expected[1:].astype(np.float32))


def test_the_tpu_kernel_refuses_pages_of_no_whole_tiles():
    cache, rows = jnp.zeros(kv_page_shape(3, 2, 4, 64)), jnp.zeros((1, 2, 64))
    writes = CacheWrites(jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32))
    with pytest.raises(NotImplementedError, match=r"multiple of 8 .--page-size."):
        kv_cache_update(cache, rows, rows, writes, backend="tpu", target=Target("tpu", "v6e", "plain"))
    with pytest.raises(NotImplementedError, match="runs on TPUs, not on cpu"):
        kv_cache_update(cache, rows, rows, writes, backend="tpu")


@pytest.mark.parametrize("num_drafts", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 8))])
@pytest.mark.parametrize("backend", ["xla", "tpu"])
def test_short_chunks_at_every_offset_over_the_end_of_a_page(backend, num_drafts):
    """Rows of a step that verifies drafts: a request each begins at every place of its page."""
    rng, S, count = np.random.default_rng(num_drafts), 8, num_drafts + 1
    cache = rng.normal(size=kv_page_shape(2 * S + 1, 1, S, 64)).astype(np.float32)
    positions = [(row, row + place) for row in range(S) for place in range(count)]
    pages = np.asarray([1 + 2 * row + position // S for row, position in positions])
    offsets = np.asarray([position % S for _, position in positions])
    pad = 3  # as a bucket has it
    pages, offsets = np.pad(pages, (0, pad)), np.pad(offsets, (0, pad))
    k, v = rng.normal(size=(2, len(pages), 1, 64)).astype(np.float32)
    expected = cache.copy()
    for token in range(len(positions)):
        expected[pages[token], 0, offsets[token], :64] = k[token, 0]
        expected[pages[token], 0, offsets[token], 64:128] = v[token, 0]
    max_runs = len(pages) // S + 2 * S  # as ForwardBatch.cache_writes has it
    writes = CacheWrites(jnp.asarray(pages), jnp.asarray(offsets), max_runs=max_runs)
    target = {"target": Target("tpu", "v6e", "plain")} if backend == "tpu" else {}
    out = UPDATED(jnp.asarray(cache), k, v, PLANNED(writes), backend=backend, **target)
    np.testing.assert_array_equal(out[1:], expected[1:])
