"""Our own C++ for CPUs: the numbers of the plain definitions, and when it is not used."""

import dataclasses
import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.weights.kinds import WeightKind
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.cpu_native import calls, library
from palladio.pallas_kernels.kv_cache_update import CacheWrites, write_rows
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, narrow_matmul, reference
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.kernel_choice import with_native_kernels
from palladio.runtime.interface.config import ExecutionConfig
from palladio.runtime.interface.errors import ConfigError
from tests.model.weights.test_weights_as_values import weight_of
from tests.pallas_kernels.attention_cases import CASES, Case, attend, make

RNG = np.random.default_rng(0)
NATIVE = NarrowProducts(native_rows=16)
ABLE = Target("cpu", "avx2", is_native=True)
HAS_COMPILER = any(map(shutil.which, library.COMPILERS))
needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER or not Target.of(jax.devices("cpu")[0]).kind, reason="needs a C++ compiler, and AVX2 at least"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this test alone; the process may have loaded another one."""
    folder = tmp_path_factory.mktemp("cache") / "native"
    compiler = next(filter(None, map(shutil.which, library.COMPILERS)))
    made = library._compiled(compiler, library._private(folder))
    library.load(folder)
    return made


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [((24,), 32), ((2, 13), 40), ((1,), 15), ((7,), 1), ((700,), 1031)],
    ids=["whole blocks", "several dimensions", "one output", "one input", "several threads, and rests of both"],
)
def test_products(num_rows: int, outputs: tuple[int, ...], inputs: int) -> None:
    rows = jnp.asarray(RNG.normal(size=(num_rows, inputs)), jnp.float32)
    matrix = jnp.asarray(RNG.normal(size=(*outputs, inputs)), jnp.bfloat16)
    out = jax.jit(lambda x, w: narrow_matmul(x, w, NATIVE))(rows, matrix)
    assert (out.dtype, out.shape) == (jnp.float32, (num_rows, *outputs))
    np.testing.assert_allclose(out, reference.matmul(rows, matrix), rtol=1e-5, atol=2e-5)
    first = narrow_matmul(rows[:1], matrix, NATIVE)
    np.testing.assert_array_equal(out[:1], first)  # whatever rows are beside it


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (20, 7), (33, 16), (40, 300), (1031, 521)])
def test_products_of_bytes(num_rows: int, inputs: int, outputs: int) -> None:
    rows = RNG.normal(size=(num_rows, inputs)).astype(np.float32)
    matrix = RNG.integers(-128, 128, (inputs, outputs), np.int8)
    out = calls.rows_times_int8(jnp.asarray(rows), jnp.asarray(matrix))
    np.testing.assert_allclose(out, rows.astype(np.float64) @ matrix, rtol=1e-5, atol=1e-2)


WIDE = [case for case in CASES if case.kv_dtype == "float32"]


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_attention(case: Case) -> None:
    data = make(case)
    out = attend(case, data, "cpu_native", target=ABLE)
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("traits", [{}, {"window": 1100, "sinks": True, "soft_cap": 5.0}], ids=["plain", "all traits"])
def test_long_requests_are_cut_into_spans(traits: dict[str, Any]) -> None:
    lengths = ((2100, 1), (1023, 1), (1024, 1))
    case = Case("spans", lengths, "decode", num_heads=20, num_kv_heads=1, table_width=140, **traits)
    data = make(case)
    out = attend(case, data, "cpu_native", target=ABLE)
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("window", [None, 100])
def test_chunks_of_a_prompt_change_no_bit_of_its_attention(window: int | None) -> None:
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
def test_what_is_not_finite_stays_so() -> None:
    worst = float(np.finfo(np.float32).max)
    rows = jnp.asarray([[np.nan, 0], [np.inf, 0], [worst, 0]], jnp.float32)
    matrix = jnp.ones((1, 2), jnp.bfloat16)
    out = np.asarray(narrow_matmul(rows, matrix, NATIVE))[:, 0]
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
def test_a_compiled_library_is_kept(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built.stat()
    assert before.st_mode & 0o077 == 0
    monkeypatch.setattr(subprocess, "run", None)  # nothing is compiled
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, handler, platform: None)
    library.load(built.parent)
    assert [path.name for path in built.parent.iterdir()] == [built.name]


@needs_compiler
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("has_zeros", [False, True])
def test_few_rows_times_int8_weights_are_not_rounded(has_zeros: bool) -> None:
    kernels = Kernels("xla", Target("cpu", "avx512_bf16", is_native=True))
    weight, wide = weight_of(WeightKind("int8", has_zeros=has_zeros, activation_bits=16), (80, 2, 24), 0, kernels)
    x = RNG.normal(size=(3, 80)).astype(np.float32)
    expected = np.einsum("ti,iab->tab", x.astype(np.float64), wide)
    np.testing.assert_allclose(weight.matmul(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    many = jnp.asarray(np.repeat(x, 3, axis=0))  # as two rows of bytes each
    assert np.abs(weight.matmul(many)[::3] - expected).max() > 1e-5


def test_without_a_compiler_xlas_products_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    target, folder = Target("cpu", "avx2"), str(tmp_path)

    def chosen(cpu_kernels: str) -> Target:
        config = ExecutionConfig(cpu_kernels=cpu_kernels, compilation_cache_dir=folder)  # type: ignore[arg-type]
        return with_native_kernels(config, target)

    assert chosen("auto") == chosen("xla") == target
    message = r"--cpu-kernels native: no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\) is on PATH; use --cpu-kernels auto"
    with pytest.raises(ConfigError, match=message):
        chosen("native")
    for kind in ("avx2", "avx512_bf16", "amx_bf16"):
        assert NarrowProducts.of(Target("cpu", kind)).native_rows == 0
        assert NarrowProducts.of(Target("cpu", kind, is_native=True)).native_rows >= 1


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/c++")
    tmp_path.chmod(0o777)
    with pytest.raises(library.NativeError, match=f"other users can write to {tmp_path}; run `chmod go-w"):
        library.load(tmp_path)


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", [])
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler))
    with pytest.raises(library.NativeError, match=r"c\+\+ failed: no such header"):
        library.load(tmp_path / "native")
    assert list((tmp_path / "native").iterdir()) == []
