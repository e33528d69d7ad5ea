"""The Triton kernels of latent attention against the oracle, on the one suite of cases; interpreted, without a GPU."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.latent_attention.triton_tile import TritonBlocks
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import Case, make
from tests.pallas_kernels.latent_cases import LAYOUTS, attend, error, rows_and_queries

INTERPRETED = Target("gpu", "9.0", interpret="plain")
SMALL = Case("small", ((300, 1), (150, 3), (0, 9)), num_decodes=1, padding_tokens=40)


@pytest.mark.parametrize("case", [SMALL, *(pytest.param(one, marks=pytest.mark.slow) for one in LAYOUTS)], ids=str)
def test_matches_the_oracle(case: Case) -> None:
    assert error(case, "gpu_triton", INTERPRETED) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("num_heads", [1, 16, 20, 40])
def test_any_number_of_heads(num_heads: int, kind: str) -> None:
    """Of several programs, too."""
    case = Case("heads", ((30, 1), (0, 1)), kind=kind, padding_rows=1)
    assert error(case, "gpu_triton", INTERPRETED, num_heads) < 3e-6


@pytest.mark.slow
def test_bfloat16_accumulates_in_float32() -> None:
    data = make(SMALL)
    pages, queries = (x.astype(jnp.bfloat16) for x in rows_and_queries(data, 20))
    out = attend(SMALL, data, pages, queries, "gpu_triton", INTERPRETED)
    assert out.dtype == "bfloat16"
    assert np.isfinite(out.astype(np.float32)).all()
    num_tokens = len(data.expected)
    wide = attend(SMALL, data, pages.astype(np.float32), queries.astype(np.float32), "reference")
    np.testing.assert_allclose(out.astype(np.float32)[:num_tokens], wide[:num_tokens], atol=3e-2)


@pytest.mark.parametrize("num_heads", [1, 4, 16, 20, 64, 128])
@pytest.mark.parametrize("single", [True, False])
def test_tiles_fit(num_heads: int, single: bool) -> None:
    for in_float32, most in ((True, 16), (False, 64)):
        blocks = TritonBlocks.of(num_heads, in_float32, single)
        assert 16 <= blocks.rows <= most
        assert blocks.heads * blocks.queries <= blocks.rows
        assert blocks.queries == 1 or not single


def test_refuses_other_devices() -> None:
    case = Case("one", ((0, 1),))
    data = make(case)
    pages, queries = rows_and_queries(data, 2)
    with pytest.raises(NotImplementedError, match="Triton compiles for GPUs, not for cpu"):
        attend(case, data, pages, queries, "gpu_triton")
    with pytest.raises(NotImplementedError, match=r"capability 8\.0 or more, this GPU has 7\.5"):
        attend(case, data, pages, queries, "gpu_triton", Target("gpu", "7.5"))
