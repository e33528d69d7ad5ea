"""Our own C++ for CPUs: the numbers of the plain definitions, and when it is not used."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.weights.kinds import WeightKind
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.cpu_native import calls
from palladio.pallas_kernels.cpu_native.forms import Form
from palladio.pallas_kernels.kv_cache_update import CacheWrites, write_rows
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, narrow_grouped_matmul, narrow_matmul
from palladio.pallas_kernels.ragged_paged_attention import cpu_native as attention_backend
from palladio.pallas_kernels.target import Target
from tests import compile_cache
from tests.model.weights.test_weights_as_values import weight_of
from tests.native_forms import every_form, load_every_form, needs_compiler
from tests.pallas_kernels.attention_cases import CASES, Case, attend, make

RNG = np.random.default_rng(0)
NATIVE = NarrowProducts(native_rows=16)
ABLE = Target("cpu", "avx2", is_native=True)


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder."""
    load_every_form()
    return compile_cache.native_folder()


SIZES = [(32, 24), (15, 1), (1, 7), (40, 26), (1031, 141), (2049, 5), (4200, 6)]
"""Inputs and outputs: whole blocks; one output; one input; rests of both; several threads; two and three parts."""
COUNTS = (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 37, 65)
"""Of rows: one block of few and of many, whole ones, and rests."""
BLOCK_COUNTS = (*(count for count in COUNTS if count < 20), 19)
"""Of rows of bfloat16, so few that blocks multiply them with AVX2, too; with AVX-512 they multiply all of COUNTS."""


def rows_of(num_rows: int, inputs: int) -> jax.Array:
    """Of sizes that differ by row."""
    return jnp.asarray(RNG.normal(size=(num_rows, inputs)) * 10.0 ** RNG.integers(-3, 4, (num_rows, 1)), jnp.float32)


def by_counts(
    multiply: Callable[[jax.Array], jax.Array], rows: jax.Array, counts: Sequence[int] = COUNTS
) -> np.ndarray:
    """The result of all rows, which is that of fewer of them, bit for bit, whatever rows are beside them."""
    *fewer, last = jax.jit(lambda rows: [multiply(rows[-count:]) for count in counts])(rows)
    out = np.asarray(last)
    assert (out.dtype, out.shape[0]) == (np.float32, rows.shape[0])
    for count, found in zip(counts, fewer, strict=False):
        np.testing.assert_array_equal(found, out[-count:])
    return out


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_bfloat16(inputs: int, outputs: int, form: Form) -> None:
    counts = BLOCK_COUNTS if form == "avx2" else COUNTS
    rows, matrix = rows_of(max(counts), inputs), jnp.asarray(RNG.normal(size=(outputs, inputs)), jnp.bfloat16)
    out = by_counts(lambda rows: calls.rows_times_bfloat16(rows, matrix, form=form), rows, counts)
    rounded, wide = (np.asarray(each.astype(jnp.bfloat16), np.float64) for each in (rows, matrix))
    assert (np.abs(out - rounded @ wide.T) <= 1e-6 * (np.abs(rounded) @ np.abs(wide).T)).all()


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(1, 7), (15, 1), (1031, 141), pytest.param(608, 64, marks=pytest.mark.slow), (4200, 6)],
)
def test_products_of_many_rows_of_bfloat16(inputs: int, outputs: int, form: Form) -> None:
    """Many rows are multiplied another way. With AVX-512 each has a lane: those of a whole register and of half a
    panel, of full panels, and of more than go together. With AVX2 each output has one: tiles of six rows and of five,
    and more than go together. NaN stays in its row, and padding repeats the last one."""
    counts = (*((20, 21, 37) if form == "avx2" else ()), 56, 64, 79, 128, 250, 605)
    nan = np.uint32(0x7FFFFFFF).view(np.float32)  # rounded as a number, it would be a zero
    rows = rows_of(max(counts), inputs).at[-3, 0].set(nan)
    matrix = jnp.asarray(RNG.normal(size=(outputs, inputs)), jnp.bfloat16)
    multiply = jax.jit(functools.partial(calls.rows_times_bfloat16, form=form))
    *fewer, out = (np.asarray(multiply(rows[-count:], matrix)) for count in counts)
    for found in fewer:
        np.testing.assert_array_equal(found, out[-len(found) :])
    padded = np.asarray(multiply(rows.at[-20:].set(rows[-21]), matrix))
    np.testing.assert_array_equal(padded, np.concatenate([out[:-20], np.repeat(out[-21:-20], 20, 0)]))
    assert np.isnan(out[-3]).all()
    rounded, wide = (np.asarray(each.astype(jnp.bfloat16), np.float64) for each in (rows, matrix))
    error = np.abs(out - rounded @ wide.T) <= 1e-6 * (np.abs(rounded) @ np.abs(wide).T)
    assert np.delete(error, -3, axis=0).all()


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
@pytest.mark.parametrize("sizes", [(4, 0, 3, 1), (0, 0, 0, 9), (0, 0, 0, 0), (30, 0, 41, 2)])
def test_products_of_experts(sizes: tuple[int, ...], form: Form) -> None:
    rows, matrices = rows_of(max(10, sum(sizes)), 1100), jnp.asarray(RNG.normal(size=(4, 26, 1100)), jnp.bfloat16)
    bits, counts = jax.lax.bitcast_convert_type(matrices, jnp.uint16), jnp.asarray(sizes, jnp.int32)
    out = np.asarray(calls.groups_times_bfloat16(rows, bits, counts, form=form))
    start = 0
    for size, matrix in zip(sizes, matrices, strict=True):
        for first in range(start, start + size, max(BLOCK_COUNTS)):  # blocks multiply experts' rows, however many
            stop = min(start + size, first + max(BLOCK_COUNTS))
            alone = calls.rows_times_bfloat16(rows[first:stop], matrix, form=form)
            np.testing.assert_array_equal(out[first:stop], alone)
        start += size
    assert not out[start:].any()
    native, xla = (narrow_grouped_matmul(rows, bits, counts, each) for each in (NATIVE, NarrowProducts()))
    largest = np.abs(np.asarray(rows)).max(1, keepdims=True)
    np.testing.assert_allclose(native / largest, xla / largest, rtol=1e-4, atol=1e-3)


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_int8(inputs: int, outputs: int, bits: Literal[8, 16], form: Form) -> None:
    rows = rows_of(max(COUNTS), inputs)
    matrix = RNG.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    scales = RNG.uniform(0.5, 2, outputs).astype(np.float32)
    zeros = RNG.integers(-128, 128, outputs).astype(np.float32) if outputs % 2 else None

    def multiply(rows: jax.Array) -> jax.Array:
        parts = (jnp.asarray(matrix), jnp.asarray(scales), None if zeros is None else jnp.asarray(zeros))
        return calls.rows_times_int8(rows, *parts, bits=bits, form=form)

    out = by_counts(multiply, rows)
    largest = {8: 127, 16: 127 * 256}[bits]
    steps = np.abs(rows).max(1, keepdims=True) / np.float32(largest)
    whole = np.rint(np.asarray(rows) / steps).astype(np.float64)
    wide = matrix.astype(np.float64) - (0 if zeros is None else zeros[:, None])
    expected = whole @ wide.T * steps * scales
    assert (np.abs(out - expected) <= 1e-6 * (np.abs(whole) @ (np.abs(wide) + 128).T * steps * scales)).all()


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
def test_rows_of_padding_have_the_results_of_the_row_that_they_repeat(form: Form) -> None:
    count = 19 if form == "avx2" else 30  # so few that blocks multiply them, with the repeated ones and without
    rows = rows_of(count, 1100)
    matrix, whole = jnp.asarray(RNG.normal(size=(26, 1100)), jnp.bfloat16), jnp.ones((26, 1100), jnp.int8)

    def products(rows: jax.Array) -> list[np.ndarray]:
        bits = jax.lax.bitcast_convert_type(jnp.stack([matrix, matrix]), jnp.uint16)
        sizes = jnp.asarray([12, count - 12])
        return [
            np.asarray(calls.rows_times_bfloat16(rows, matrix, form=form)),
            np.asarray(calls.rows_times_int8(rows, whole, jnp.ones(26, jnp.float32), form=form)),
            np.asarray(calls.groups_times_bfloat16(rows, bits, sizes, form=form)),
        ]

    different = products(rows)
    for first, stop in ((11, count), (1, count), (7, 12)):  # at the end, all but one row, and at the end of a group
        for found, own in zip(products(rows.at[first:stop].set(rows[first - 1])), different, strict=True):
            np.testing.assert_array_equal(found[:first], own[:first])
            np.testing.assert_array_equal(found[first:stop], np.repeat(own[first - 1 : first], stop - first, 0))
            np.testing.assert_array_equal(found[stop:], own[stop:])


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("inputs", [2048, 9000])
def test_the_largest_numbers_of_int8_do_not_overflow(inputs: int, bits: Literal[8, 16], form: Form) -> None:
    signs = jnp.asarray([[1.0], [-1.0]])
    rows = jnp.concatenate([3.5 * signs * jnp.ones(inputs), jnp.ones((1, inputs)).at[0, ::2].set(-1)])
    matrix = jnp.concatenate([jnp.full((4, inputs), -128), jnp.full((4, inputs), 127)]).astype(jnp.int8)
    scales = jnp.ones(8, jnp.float32)
    out = calls.rows_times_int8(rows, matrix, scales, bits=bits, form=form)
    expected = np.asarray(rows, np.float64) @ np.asarray(matrix, np.float64).T
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=0.01)


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
def test_rows_that_are_not_finite_are_nan_and_others_are_not(form: Form) -> None:
    rows = np.ones((6, 70), np.float32)
    rows[0, 3], rows[1, 64], rows[2, 69], rows[3], rows[4] = np.nan, np.inf, -np.inf, 0, 1e-44
    parts = jnp.ones((5, 70), jnp.int8), jnp.ones(5, jnp.float32)
    for bits in (8, 16):
        out = np.asarray(calls.rows_times_int8(jnp.asarray(rows), *parts, bits=bits, form=form))  # type: ignore[arg-type]
        assert np.isnan(out[:3]).all()
        assert (out[3] == 0).all()
        assert np.isfinite(out[4]).all()
        np.testing.assert_allclose(out[5], 70, rtol=1e-4)


WIDE = [case for case in CASES if case.kv_dtype == "float32"]


@pytest.fixture
def _attention_of_a_form(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = functools.partial(calls.paged_attention, form=form)
    monkeypatch.setattr(attention_backend, "paged_attention", attention)


@needs_compiler
@pytest.mark.usefixtures("built", "_attention_of_a_form")
@every_form
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_attention(case: Case, form: Form) -> None:
    data = make(case)
    out = attend(case, data, "cpu_native", target=ABLE)
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("built", "_attention_of_a_form")
@every_form
@pytest.mark.parametrize("traits", [{}, {"window": 1100, "sinks": True, "soft_cap": 5.0}], ids=["plain", "all traits"])
@pytest.mark.parametrize("num_heads", [20, 3], ids=["many of a kv head", "few"])
def test_long_requests_are_cut_into_spans(num_heads: int, traits: dict[str, Any], form: Form) -> None:
    lengths = ((2100, 1), (1023, 1), (1024, 1))
    case = Case("spans", lengths, "decode", num_heads=num_heads, num_kv_heads=1, table_width=140, **traits)
    data = make(case)
    out = attend(case, data, "cpu_native", target=ABLE)
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("built", "_attention_of_a_form")
@every_form
@pytest.mark.parametrize("window", [None, 100])
def test_chunks_of_a_prompt_change_no_bit_of_its_attention(window: int | None, form: Form) -> None:
    whole = Case("whole", ((0, 300),), num_heads=6, window=window)
    data = make(whole)
    out = attend(whole, data, "cpu_native", target=ABLE)
    for first, stop in ((3, 5), (37, 190), (190, 300)):
        q, starts = data.q[first:stop], np.array([0, stop - first], np.int32)
        chunk = dataclasses.replace(data, q=q, query_start=starts, kv_len=np.array([stop], np.int32))
        np.testing.assert_array_equal(attend(whole, chunk, "cpu_native", target=ABLE), out[first:stop])


@needs_compiler
@pytest.mark.usefixtures("built")
def test_a_cache_is_written_in_place() -> None:
    pages = jnp.asarray(RNG.normal(size=(40, 3, 8, 128)), jnp.float32)
    rows = jnp.asarray(RNG.normal(size=(50, 3, 128)), jnp.float32)
    cells = RNG.permutation(np.arange(8, 320))[:50].astype(np.int32)
    writes = CacheWrites(jnp.asarray(cells // 8), jnp.asarray(cells % 8))
    expected = write_rows(pages, rows, writes, backend="reference")
    native = functools.partial(write_rows, backend="cpu_native", target=ABLE)
    np.testing.assert_array_equal(jax.jit(native)(pages, rows, writes), expected)  # of a copy: `pages` is not donated
    compiled = jax.jit(native, donate_argnums=0).lower(pages, rows, writes).compile()
    assert re.findall(r"f32\[40,3,8,128\]\S* (?!parameter|custom-call)(\S+?)\(", compiled.as_text()) == []
    address = pages.unsafe_buffer_pointer()
    written = compiled(pages, rows, writes)
    assert written.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(written, expected)
    nowhere = CacheWrites(jnp.full(50, 40), writes.page_offsets)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such page or offset"):
        jax.block_until_ready(jax.jit(native)(written, rows, nowhere))


@needs_compiler
@pytest.mark.usefixtures("built")
@every_form
def test_what_is_not_finite_stays_so(form: Form) -> None:
    worst = float(np.finfo(np.float32).max)
    rows = jnp.asarray([[np.nan, 0], [np.inf, 0], [worst, 0]], jnp.float32)
    matrix = jnp.ones((1, 2), jnp.bfloat16)
    out = np.asarray(calls.rows_times_bfloat16(rows, matrix, form=form))[:, 0]
    np.testing.assert_array_equal(out, [np.nan, np.inf, np.inf])  # the largest float32 is infinite in bfloat16


@needs_compiler
@pytest.mark.usefixtures("built")
def test_more_rows_are_xlas() -> None:
    def count(num_rows: int) -> int:
        shapes = (
            jax.ShapeDtypeStruct((num_rows, 32), jnp.float32),
            jax.ShapeDtypeStruct((8, 32), jnp.bfloat16),
        )
        products = dataclasses.replace(NATIVE, native_rows=4)
        return jax.jit(lambda x, w: narrow_matmul(x, w, products)).lower(*shapes).as_text().count(calls.BFLOAT16)

    assert [count(number) for number in (1, 4, 5)] == [1, 1, 0]


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("shape", "inputs"), [((80, 2, 24), 0), ((30, 80), 1)], ids=["projection", "table"])
@pytest.mark.parametrize("bits", [8, 16])
def test_int8_weights_have_the_numbers_of_xlas_products(
    shape: tuple[int, ...], inputs: int, bits: Literal[8, 16]
) -> None:
    kind = WeightKind("int8", has_zeros=bits == 16, activation_bits=bits)
    # Always the same: one row in sixty has a number that one division rounds up and the other down.
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 80)), jnp.float32)
    plain = Target("cpu", "avx512_bf16")
    ours = dataclasses.replace(plain, is_native=True, has_native_int8=True)
    native, xlas = (weight_of(kind, shape, inputs, Kernels("xla", target))[0] for target in (ours, plain))
    text = jax.jit(lambda x: native.matmul(x)).lower(x).as_text()
    assert text.count(calls.INT8) == 1
    assert "dot_general" not in text
    largest = np.abs(np.asarray(x)).max(1)
    np.testing.assert_allclose(native.matmul(x), xlas.matmul(x), rtol=1e-5, atol=1e-5 * largest.max())
    one = np.asarray(native.matmul(x[2:3]))
    np.testing.assert_array_equal(one, np.asarray(native.matmul(x))[2:3])
