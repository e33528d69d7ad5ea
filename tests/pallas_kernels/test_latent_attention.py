"""Latent attention: both backends against numpy in float64, and the write of rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.kv_cache_update import CacheWrites
from palladio.pallas_kernels.latent_attention import latent_cache_update, latent_page_shape
from tests.pallas_kernels.attention_cases import Case, make
from tests.pallas_kernels.latent_cases import LAYOUTS, L, R, attend, oracle, rows_and_queries

# The others differ from these by sizes, of which attention's own cases have all.
QUICK = ("chunked", "mixed", "much padding", "odd pages", "decode, padded")


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        *(pytest.param("xla", case, marks=() if case.name in QUICK else pytest.mark.slow) for case in LAYOUTS),
        *(("reference", case) for case in LAYOUTS[::8]),
        *(pytest.param("reference", case, marks=pytest.mark.slow) for case in LAYOUTS[4::8]),
    ],
    ids=str,
)
def test_matches_the_oracle(backend: str, case: Case) -> None:
    data = make(case)
    pages, queries = rows_and_queries(data, num_heads=3)
    out = attend(case, data, pages, queries, backend)
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    expected = oracle(data, pages, queries)
    np.testing.assert_allclose(out[: len(expected)], expected.reshape(-1, 3, L), atol=3e-6, rtol=1e-5)


def test_blocks_get_smaller_with_more_heads() -> None:
    """A block of queries has all heads of its tokens."""
    case = Case("heads", ((3, 40), (0, 9)))
    data = make(case)
    pages, queries = rows_and_queries(data, num_heads=128)
    np.testing.assert_allclose(
        attend(case, data, pages, queries, "xla"), oracle(data, pages, queries), atol=3e-6, rtol=1e-5
    )


def test_a_row_is_written_in_one_piece_and_nothing_else_is() -> None:
    rng = np.random.default_rng(0)
    pages = rng.standard_normal(latent_page_shape(4, 8, L, R)).astype(np.float32)
    latent, rotated = rng.standard_normal((3, L)), rng.standard_normal((3, R))
    page_ids, offsets = np.array([2, 2, 3], np.int32), np.array([6, 7, 0], np.int32)
    writes = CacheWrites(jnp.asarray(page_ids), jnp.asarray(offsets))
    out = np.array(latent_cache_update(jnp.asarray(pages), jnp.asarray(latent), jnp.asarray(rotated), writes))
    expected = pages.copy()
    for token, cell in enumerate(zip(page_ids, offsets, strict=True)):
        expected[cell] = 0.0
        expected[cell][: L + R] = np.concatenate([latent[token], rotated[token]])
    np.testing.assert_array_equal(out, expected)


def test_the_published_sizes_take_five_rows_of_lanes() -> None:
    assert latent_page_shape(7, 16, 512, 64) == (7, 16, 640)


def test_what_does_not_fit_is_refused() -> None:
    case = LAYOUTS[0]
    data = make(case)
    pages, queries = rows_and_queries(data, num_heads=2)
    with pytest.raises(NotImplementedError, match="latents are kept as float32, bfloat16, float16, not as int8"):
        attend(case, data, pages.astype(np.int8), queries, "xla")
    with pytest.raises(ValueError, match="do not fit pages"):
        attend(case, data, pages[..., :40], queries, "xla")
    with pytest.raises(ValueError, match="latent_attention has no backend 'gpu_mosaic'"):
        attend(case, data, pages, queries, "gpu_mosaic")
    with pytest.raises(NotImplementedError, match="it runs on TPUs, not on cpu"):
        attend(case, data, pages, queries, "tpu")
