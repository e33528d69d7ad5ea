"""Every backend of ragged paged attention against the numpy oracle, on the one suite of cases."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    kv_page_shape,
    padded_head_size,
    ragged_paged_attention,
    xla,
)
from tests.pallas_kernels.attention_cases import CASES, Case, attend, make, metadata_of

# Each differs from a quicker case, or from two, by sizes alone.
_ALIKE = ("page edges", "mixed, only decodes", "full table", "rows of one tile", "window of a page and a bit", "mixed")


def is_quick(case: Case) -> bool:
    """Sizes of heads and dtypes come in prefill and in decode steps: by default each is taken in one of the two."""
    if case.name in _ALIKE:
        return False
    alike = [other for other in CASES if other.kind == case.kind and other.name.startswith(f"{case.kind}, ")]
    alike = [other for other in alike if "=" in other.name or other.kv_dtype != "float32"]
    return case not in alike or (alike.index(case) + (case.kind == "decode")) % 2 == 0


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        *(pytest.param("xla", case, marks=() if is_quick(case) else pytest.mark.slow) for case in CASES),
        *(("reference", case) for case in CASES[::8]),
        *(pytest.param("reference", case, marks=pytest.mark.slow) for case in CASES[4::8]),
    ],
    ids=str,
)
def test_matches_the_oracle(backend, case):
    data = make(case)
    out = attend(case, data, backend)
    assert out.shape == data.q.shape
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("page_size", "gathers"), [(16, 0), (4, 1)])
def test_xla_copies_pages_whole_unless_they_are_small(page_size, gathers):
    """A gather takes XLA:CPU as long as all products."""
    pages = jnp.zeros((9, *kv_page_shape(1, 2, page_size, 32)[1:]))
    numbers = jnp.arange(128 // page_size) % 9
    text = jax.jit(lambda pages, numbers: xla._copy(pages, numbers)).lower(pages, numbers).as_text()
    assert text.count('"stablehlo.gather"(') == gathers
    np.testing.assert_array_equal(xla._copy(pages + 1, numbers), (pages + 1)[numbers])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(("prefill", "bfloat16"), ("decode", "float16")),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("prefill", "float16"), ("decode", "bfloat16"))),
    ],
)
def test_short_dtypes_accumulate_in_float32(dtype, kind):
    case = Case("dtype", ((36, 1), (0, 1)), kind=kind, num_heads=4)
    out, exact = (attend(case, make(case), name, dtype=dtype) for name in ("xla", "reference"))
    assert out.dtype == dtype
    np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(exact, np.float32), atol=1e-2)


def test_work_does_not_grow_with_the_block_table():
    """Loops run by the real lengths: no array of the compiled program is as wide as the table."""
    data = make(Case("narrow", ((299, 1),), kind="decode"))
    table = jnp.zeros((1, 8192), jnp.int32).at[0, :24].set(data.block_table[0])
    metadata = AttentionMetadata(
        jnp.asarray(data.query_start), jnp.asarray(data.kv_len), table, jnp.int32(1), jnp.int32(1), "decode"
    )
    call = jax.jit(lambda q, pages, metadata: ragged_paged_attention(q, pages, metadata, scale=1.0, backend="xla"))
    text = call.lower(data.q, data.kv_pages, metadata).compile().as_text()
    assert not re.search(r"f32\[[^\]]*(8192|131072)", text)


def test_layout_rule():
    assert [padded_head_size(h) for h in (16, 64, 65, 96, 128, 129, 256)] == [64, 64, 128, 128, 128, 256, 256]
    assert kv_page_shape(3, 2, 16, 96) == (3, 2, 16, 256)


def test_misuse_is_an_error():
    data = make(CASES[0])
    metadata = metadata_of(data, CASES[0])
    with pytest.raises(ValueError, match=r"no backend .fast.; known: auto, .*reference.*xla"):
        ragged_paged_attention(data.q, data.kv_pages, metadata, scale=1.0, backend="fast")
    with pytest.raises(ValueError, match="does not fit"):
        ragged_paged_attention(data.q[:, :3], data.kv_pages, metadata, scale=1.0)
    with pytest.raises(ValueError, match="one token a request"):
        ragged_paged_attention(
            data.q.repeat(2, 0), data.kv_pages, dataclasses.replace(metadata, kind="decode"), scale=1.0
        )
    with pytest.raises(ValueError, match="one score a query head"):
        ragged_paged_attention(data.q, data.kv_pages, metadata, scale=1.0, sinks=jnp.zeros(3))


def test_a_refusing_backend_is_passed_over():
    def refuse():
        raise NotImplementedError("not on this chip")

    backends = {"gpu": refuse, "xla": lambda: "xla"}
    assert dispatch("op", backends, ("gpu", "xla"), "auto") == "xla"
    with pytest.raises(NotImplementedError, match="gpu: not on this chip"):
        dispatch("op", backends, ("gpu", "xla"), "gpu")
    with pytest.raises(NotImplementedError, match="no backend of op"):
        dispatch("op", backends, ("gpu",), "auto")
