"""The TPU kernel of latent attention, interpreted on this host, against the oracle of the one case suite.

What copies pages and rows of the block table is that of ragged paged attention, and has its faults planted there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.kv_cache_update import CacheWrites
from palladio.pallas_kernels.latent_attention import (
    latent_cache_update,
    latent_page_shape,
    latent_shape,
    tpu_config,
    tpu_kernel,
)
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import VMEM
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import Case, make
from tests.pallas_kernels.latent_cases import LAYOUTS, L, R, attend, error, rows_and_queries

RUNNABLE = [case for case in LAYOUTS if case.page_size % 8 == 0]
SMALL = Case("small", ((300, 1), (150, 3), (0, 9)), num_decodes=1, padding_tokens=3)
SMALLEST = Case("smallest", ((140, 1), (20, 3)), num_decodes=1, padding_tokens=3)
PLAIN, ON_WAIT, EAGER = (Target("tpu", "v6e", mode) for mode in ("plain", "on_wait", "eager"))


@pytest.fixture(autouse=True)
def _fresh_simulator():
    pltpu.reset_tpu_interpret_mode_state()
    yield
    pltpu.reset_tpu_interpret_mode_state()
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("case", [SMALL, *RUNNABLE], ids=str)
def test_matches_the_oracle(case):
    assert error(case, "tpu", PLAIN) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("num_heads", [1, 16, 20, 128])
def test_any_number_of_heads(num_heads):
    assert error(SMALL, "tpu", PLAIN, num_heads) < 1e-5


@pytest.mark.parametrize("target", [ON_WAIT, pytest.param(EAGER, marks=pytest.mark.slow)], ids=lambda t: t.interpret)
@pytest.mark.parametrize(
    "case",
    [
        SMALLEST,
        pytest.param(SMALL, marks=pytest.mark.slow),
        *(pytest.param(c, marks=pytest.mark.slow) for c in RUNNABLE if c.name in ("several blocks", "mixed")),
    ],
    ids=str,
)
@pytest.mark.slow  # test_matches_the_oracle interprets the same kernel
def test_matches_the_oracle_on_a_simulated_tpu(case, target):
    assert error(case, "tpu", target) < 1e-5
    assert not _races()


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["wait", "wait_leaving"])
def test_a_missing_wait_for_queries_or_outputs_is_found(wait, monkeypatch):
    monkeypatch.setattr(tpu_kernel._Rows, wait, lambda *_: None)
    assert not error(SMALL, "tpu", ON_WAIT) < 1e-5


@pytest.mark.slow
def test_queries_that_see_later_keys_are_found(monkeypatch):
    write = tpu_kernel._write_last
    monkeypatch.setattr(tpu_kernel, "_write_last", lambda last, at, *rest: write(last, at + 1, *rest))
    assert not error(SMALL, "tpu", PLAIN) < 1e-5


@pytest.mark.slow
def test_bfloat16_accumulates_in_float32():
    data = make(SMALL)
    pages, queries = (x.astype(jnp.bfloat16) for x in rows_and_queries(data, 2))
    out = attend(SMALL, data, pages, queries, "tpu", PLAIN)
    assert out.dtype == "bfloat16"
    num_tokens = len(data.expected)
    wide = attend(SMALL, data, pages.astype(np.float32), queries.astype(np.float32), "reference")
    np.testing.assert_allclose(out.astype(np.float32)[:num_tokens], wide[:num_tokens], atol=3e-2)


@pytest.mark.parametrize("one_each", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rows_are_written_by_the_kernel_of_the_cache(one_each):
    rng = np.random.default_rng(0)
    pages = rng.standard_normal(latent_page_shape(4, 8, L, R)).astype(np.float32)
    latent, rotated = (rng.standard_normal((3, size)).astype(np.float32) for size in (L, R))
    page_ids, offsets = np.array([2, 3, 0] if one_each else [2, 2, 3], np.int32), np.array([6, 7, 0], np.int32)
    writes = CacheWrites(jnp.asarray(page_ids), jnp.asarray(offsets), one_each=one_each)
    args = jnp.asarray(pages), jnp.asarray(latent), jnp.asarray(rotated), writes
    out = np.array(latent_cache_update(*args, backend="tpu", target=PLAIN))
    np.testing.assert_array_equal(out[1:], np.array(latent_cache_update(*args))[1:])


@pytest.mark.parametrize("chip", sorted(VMEM))
@pytest.mark.parametrize("num_heads", [4, 16, 20, 128])
@pytest.mark.parametrize("page_size", [16, 48, 128])
def test_block_sizes_suit_the_kernel(chip, num_heads, page_size):
    pages = jax.ShapeDtypeStruct((8, page_size, 640), jnp.bfloat16)
    shape = latent_shape(num_heads, pages, jax.ShapeDtypeStruct((8, 64), jnp.int32), jnp.bfloat16)
    for kind in ("decode", "chunk"):
        blocks = tpu_config.latent_blocks(kind, shape, Target("tpu", chip))
        assert blocks.keys % page_size == blocks.keys % blocks.key_chunk == blocks.rows % blocks.row_chunk == 0
        assert blocks.key_chunk % 128 == blocks.heads % 16 == 0
        assert blocks.vmem < VMEM[chip]
        assert (blocks.queries == 1) == (kind == "decode")


def _races():
    return interpret_pallas_call.races is not None and interpret_pallas_call.races.races_found
