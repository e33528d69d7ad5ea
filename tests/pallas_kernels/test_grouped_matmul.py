"""Every backend of grouped matmul against numpy; the Triton kernel is interpreted, so no GPU is needed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.grouped_matmul import Scales, gpu_triton, grouped_matmul
from palladio.pallas_kernels.grouped_matmul.config import MatmulTiles
from palladio.pallas_kernels.grouped_matmul.row_tiles import plan_tiles, plan_tiles_on_gpu
from palladio.pallas_kernels.grouped_matmul.scales import unpacked
from palladio.pallas_kernels.grouped_matmul.tpu_scaled import MAX_ROWS, _units_of_a_step, tile_rows
from palladio.pallas_kernels.target import Target
from tests.pairwise import pairwise
from tests.pallas_kernels.interpret_mosaic import EXPERTS, interpret

INTERPRETED = Target("gpu", "9.0", interpret="plain")
SCALED = ["tpu_scaled", "gpu_triton", "xla", "reference"]
SIZES = {
    "one group": [5],
    "even": [16, 16, 16],
    "edges": [1, 15, 16, 17, 31, 32, 33],
    "empty groups": [0, 7, 0, 0, 20, 0],
    "nothing": [0, 0, 0],
    "one of many": [0, 0, 90, 0],
}


FORMS_IN_PARTS = {  # storage, group, zero points
    "fp8 in blocks": ("float8_e4m3fn", 128, False),
    "int4 in groups": ("int4", 128, False),
    "int4 in groups with zero points": ("int4", 32, True),
}
ONE_MATRIX = [("int4 in groups", 17, 128), ("int4 in groups with zero points", 2, 200)]


@pytest.mark.parametrize(
    ("backend", "name", "spare_rows"), pairwise(["gpu_triton", "xla", "reference"], list(SIZES), [1, 40])
)
def test_matches_numpy(backend, name, spare_rows):
    sizes = SIZES[name]
    rows, matrices, expected = _make(sizes, spare_rows, 64, 128)
    call = jax.jit(functools.partial(grouped_matmul, backend=backend, target=INTERPRETED))
    out = call(rows, matrices, jnp.array(sizes, jnp.int32))
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("D", "F"),
    [(40, 128), (16, 1), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((64, 72), (8, 24), (100, 200)))],
)
def test_sizes_that_no_tile_divides(D, F):
    sizes = SIZES["edges"]
    rows, matrices, expected = _make(sizes, 3, D, F)
    call = functools.partial(gpu_triton.matmul, target=INTERPRETED, tiles=MatmulTiles(16, 32, 32, 4, 2))
    out = jax.jit(call)(rows, matrices, jnp.array(sizes, jnp.int32))
    np.testing.assert_allclose(out, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backend", "group", "storage", "name"),
    [
        *pairwise(SCALED, [256, 32], ["int8", "float8_e4m3fn"], ["one group", "edges", "nothing"]),
        *(
            pytest.param(*row, "edges", marks=pytest.mark.slow)
            for row in itertools.product(SCALED, [128, 64, 16], ["int8", "float8_e4m3fn"])
        ),
    ],
)
def test_matrices_of_8_bits_with_scales(backend, group, storage, name):
    """The same as of the widened numbers, for groups of rows that are all (256) or fewer than a kernel's step."""
    target = {"tpu_scaled": Target("tpu", "v6e", interpret="plain"), "gpu_triton": INTERPRETED}.get(backend, Target())
    rng, sizes = np.random.default_rng(1), SIZES[name]
    rows, matrices, _ = _make(sizes, 7, 256, 128)
    matrices = (matrices * (1000 if storage == "int8" else 1)).astype(storage)
    factors = rng.uniform(0.5, 2.0, (len(sizes), 256 // group, 128)).astype(np.float32)
    wide = np.asarray(matrices, np.float64) * np.repeat(factors, group, axis=1)
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    expected = np.einsum("md,mdf->mf", np.asarray(rows, np.float64)[: len(of_row)], wide[of_row])
    call = functools.partial(grouped_matmul, scales=Scales(factors, group), backend=backend, target=target)
    out = np.asarray(jax.jit(call)(rows, matrices, jnp.array(sizes, jnp.int32)))
    np.testing.assert_allclose(out[: len(of_row)], expected, rtol=1e-4, atol=1e-4 * np.abs(wide).max())
    assert not out[len(of_row) :].any()


FLOAT4 = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6, np.nan, -6, -4, -3, -2, -1.5, -1, -0.5], np.float32)


@pytest.mark.parametrize(
    ("backend", "form", "group"),
    pairwise(
        SCALED,
        ["int4", "int4 with zeros", "float4", "int8 with zeros"],
        [256, 32],
    ),
)
def test_matrices_of_4_bits(backend, form, group):
    """Whole numbers with and without zero points, and floats by their table."""
    target = {"tpu_scaled": Target("tpu", "v6e", interpret="plain"), "gpu_triton": INTERPRETED}.get(backend, Target())
    rng = np.random.default_rng(2)
    sizes = [1, 15, 0, 17]
    rows, _, _ = _make(sizes, 3, 256, 128)
    low, high = (-128, 128) if form.startswith("int8") else (-8, 8)
    stored = rng.integers(low, high, (len(sizes), 256, 128))
    factors = rng.uniform(0.5, 2.0, (len(sizes), 256 // group, 128)).astype(np.float32)
    if form == "float4":
        stored, factors = np.maximum(stored, -7), np.exp2(np.rint(3 * np.log2(factors)))
    zeros = rng.integers(low, high, factors.shape).astype(np.float32) if "zeros" in form else None
    wide = FLOAT4[stored & 15] if form == "float4" else stored.astype(np.float32)
    if zeros is not None:
        wide = wide - np.repeat(zeros, group, axis=1)
    wide = wide.astype(np.float64) * np.repeat(factors, group, axis=1)
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    expected = np.einsum("md,mdf->mf", np.asarray(rows, np.float64)[: len(of_row)], wide[of_row])
    scales = Scales(jnp.asarray(factors), group, None if zeros is None else jnp.asarray(zeros), form == "float4")
    call = functools.partial(grouped_matmul, scales=scales, backend=backend, target=target)
    matrices = jnp.asarray(stored, jnp.int8 if form.startswith("int8") else jnp.int4)
    out = np.asarray(jax.jit(call)(rows, matrices, jnp.array(sizes, jnp.int32)))
    np.testing.assert_allclose(out[: len(of_row)], expected, rtol=1e-4, atol=1e-4 * np.abs(wide).max())
    assert not out[len(of_row) :].any()


@pytest.mark.parametrize(
    ("D", "F", "group", "storage"),
    [
        (288, 360, 32, "int4"),
        (288, 200, 288, "float8_e4m3fn"),
        (1152, 128, 128, "int8"),  # a step of five units, and one of four
        pytest.param(2304, 128, 128, "int4", marks=pytest.mark.slow),  # two wide steps of nine units
        pytest.param(416, 130, 64, "float8_e4m3fn", marks=pytest.mark.slow),
        pytest.param(192, 2880, 16, "int4", marks=pytest.mark.slow),
    ],
)
def test_sizes_that_no_block_of_the_tpu_kernel_divides(D, F, group, storage):
    """What a last block holds beyond the matrix may be anything: interpreted, it is NaN."""
    sizes = [1, 15, 0, 17]
    rng, num_groups = np.random.default_rng(3), -(-D // group)
    rows = rng.standard_normal((36, D)).astype(np.float32)
    stored = rng.integers(-8, 8, (len(sizes), D, F))
    factors = rng.uniform(0.5, 2.0, (len(sizes), num_groups, F)).astype(np.float32)
    wide = stored * np.repeat(factors, group, axis=1)[:, :D].astype(np.float64)
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    expected = np.einsum("md,mdf->mf", rows[: len(of_row)].astype(np.float64), wide[of_row])
    target = Target("tpu", "v6e", interpret="plain")
    call = functools.partial(grouped_matmul, scales=Scales(factors, group), backend="tpu_scaled", target=target)
    out = np.asarray(jax.jit(call)(rows, jnp.asarray(stored).astype(storage), jnp.array(sizes, jnp.int32)))
    np.testing.assert_allclose(out[: len(of_row)], expected, rtol=1e-4, atol=1e-4 * np.abs(wide).max())
    assert not out[len(of_row) :].any()


@pytest.mark.parametrize(
    ("form", "num_rows", "F"),
    [("fp8 in blocks", 5, 96), *(pytest.param(*other, marks=pytest.mark.slow) for other in ONE_MATRIX)],
)
def test_a_single_matrix_is_multiplied_in_parts(form, num_rows, F):
    """Where its columns alone are too few programs. 1,184 rows: the last part and the last group are not whole."""
    rng, D = np.random.default_rng(3), 1184
    storage, group, has_zeros = FORMS_IN_PARTS[form]
    rows = jnp.asarray(rng.normal(size=(num_rows, D)), jnp.float32)
    values = jnp.asarray(rng.normal(size=(1, D, F)) * 3, storage)
    factors = rng.uniform(0.5, 1.5, (1, -(-D // group), F)).astype(np.float32)
    zeros = jnp.asarray(rng.integers(-8, 8, factors.shape), jnp.float32) if has_zeros else None
    scales, sizes = Scales(jnp.asarray(factors), group, zeros), jnp.array([num_rows - 1], jnp.int32)
    assert MatmulTiles.of(rows, values).in_parts(num_rows, D, F).parts > 4
    call = functools.partial(grouped_matmul, scales=scales, target=INTERPRETED)
    out, expected = (
        jax.jit(functools.partial(call, backend=name))(rows, values, sizes) for name in ("gpu_triton", "reference")
    )
    np.testing.assert_allclose(out, expected, atol=2e-4, rtol=1e-5)
    assert not np.any(np.asarray(out[-1])), "a row of no group"


def test_parts_make_programs_for_all_multiprocessors_and_no_more():
    def parts(num_rows: int, D: int, F: int) -> int:
        rows, matrix = jnp.zeros((num_rows, D), jnp.bfloat16), jax.ShapeDtypeStruct((1, D, F), jnp.int8)
        return MatmulTiles.of(rows, matrix).in_parts(num_rows, D, F).parts

    assert [parts(16, 4096, F) for F in (4096, 6144, 28672)] == [5, 3, 1]
    assert parts(16, 14336, 4096) == 5
    assert parts(16, 256, 128) == 1, "a part has some steps"
    assert parts(2048, 4096, 4096) == 1


def test_scales_that_do_not_fit():
    rows, matrices, _ = _make([4], 0, 128, 128)
    sizes, factors = jnp.array([4], jnp.int32), jnp.ones((1, 3, 128))
    with pytest.raises(ValueError, match=r"scales \(1, 3, 128\) of groups of 64 do not fit"):
        grouped_matmul(rows, matrices.astype(jnp.int8), sizes, scales=Scales(factors, 64))
    for backend, target, reason in (
        ("tpu_scaled", Target("tpu", "v6e"), "no whole blocks"),
        ("gpu_triton", Target("gpu", "9.0"), "no multiple of 16"),
    ):
        small = Scales(jnp.ones((1, 32, 128)), 4)
        with pytest.raises(NotImplementedError, match=reason):
            grouped_matmul(rows, matrices.astype(jnp.int8), sizes, scales=small, backend=backend, target=target)


@pytest.mark.parametrize("num_rows", [8, *(pytest.param(count, marks=pytest.mark.slow) for count in (128, 1024))])
def test_bfloat16_accumulates_in_float32(num_rows):
    """Of each size of tiles."""
    sizes = [num_rows // 4, 0, num_rows // 2, num_rows // 4]
    rows, matrices, expected = _make(sizes, 0, 256, 128, "bfloat16")
    call = jax.jit(functools.partial(grouped_matmul, backend="gpu_triton", target=INTERPRETED))
    out = call(rows, matrices, jnp.array(sizes, jnp.int32))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=0.02, rtol=0.01)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 cannot interpret it")
@pytest.mark.parametrize("mode", ["plain", "eager"])
def test_the_kernel_for_hopper_matches_the_reference(mode):
    """eager looks for races too."""
    found = interpret(mode, list(EXPERTS))
    assert len(found) == len(EXPERTS)
    assert max(found.values()) < 0.02, found


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"dtype": "float32"}, "not float32"),
        ({"D": 96}, "96×128 are not multiples of 64"),
        ({"F": 72}, "64×72 are not multiples of 64"),
        ({"M": 100}, "100 rows in 2 groups"),
        ({"target": Target("gpu", "8.0")}, "this GPU has 8.0"),
    ],
)
def test_the_kernel_for_hopper_says_what_it_cannot_do(sizes, reason):
    sizes = {"M": 128, "D": 64, "F": 128, "dtype": "bfloat16", "target": Target("gpu", "9.0")} | sizes
    rows = jnp.zeros((sizes["M"], sizes["D"]), sizes["dtype"])
    matrices = jnp.zeros((2, sizes["D"], sizes["F"]), sizes["dtype"])
    with pytest.raises(NotImplementedError, match=reason):
        grouped_matmul(rows, matrices, jnp.zeros(2, jnp.int32), backend="gpu_mosaic", target=sizes["target"])


FEW_ROWS = {"one row a group": [0, 1] * 8, "all in the last group": [0] * 127 + [16], "no row": [0] * 128}


@pytest.mark.parametrize(
    ("tile", "beyond"),
    [
        (16, 1),
        *(
            pytest.param(tile, beyond, marks=pytest.mark.slow)
            for tile, beyond in ((1, 0), (1, 1), (1, 50), (16, 0), (16, 50), (64, 0), (64, 1), (64, 50))
        ),
    ],
)
@pytest.mark.parametrize("sizes", (SIZES | FEW_ROWS).values(), ids=SIZES | FEW_ROWS)
def test_tiles_cover_every_row_once(sizes, tile, beyond):
    M = max(sum(sizes) + beyond, 1)
    plans = jax.jit(lambda sizes: (plan_tiles(sizes, M, tile), plan_tiles_on_gpu(sizes, M, tile, INTERPRETED)))
    plan, of_kernel = jax.tree.map(np.asarray, plans(jnp.array(sizes, jnp.int32)))
    jax.tree.map(np.testing.assert_array_equal, of_kernel, plan)
    group_of = np.full(M, -1)
    for group, first, count in zip(*plan, strict=True):
        assert (group_of[first : first + count] == -1).all()
        group_of[first : first + count] = group
    np.testing.assert_array_equal(group_of, np.repeat([*range(len(sizes)), -1], [*sizes, M - sum(sizes)]))
    zeroed = {row for a, n in zip(plan.first, plan.num_rows, strict=True) if n == 0 for row in range(a, a + tile)}
    assert set(range(sum(sizes), M)) <= zeroed
    assert not zeroed & set(range(sum(sizes)))
    assert len(plan.group) <= -(-M // tile) + M  # few rows are of few groups


def test_misuse_is_an_error():
    rows, matrices, _ = _make([4], 0, 16, 16)
    with pytest.raises(ValueError, match="do not fit together"):
        grouped_matmul(rows, matrices, jnp.zeros(2, jnp.int32))
    with pytest.raises(ValueError, match="one dtype"):
        grouped_matmul(rows.astype(jnp.bfloat16), matrices, jnp.zeros(1, jnp.int32))
    with pytest.raises(NotImplementedError, match="for GPUs, not for tpu"):
        grouped_matmul(rows, matrices, jnp.zeros(1, jnp.int32), backend="gpu_triton", target=Target("tpu", "v6e"))


def test_a_gpu_gets_the_kernel_by_itself():
    rows, matrices, _ = _make([4], 0, 16, 16)
    call = functools.partial(grouped_matmul, target=INTERPRETED)
    assert "pallas_call" in str(jax.make_jaxpr(call)(rows, matrices, jnp.array([4], jnp.int32)))


def _make(sizes, spare_rows, D, F, dtype="float32"):
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.normal(size=(sum(sizes) + spare_rows, D)), dtype)
    matrices = jnp.asarray(rng.normal(size=(len(sizes), D, F)) / D**0.5, dtype)
    group = np.repeat(np.arange(len(sizes)), sizes)
    exact = np.einsum("md,mdf->mf", np.asarray(rows, np.float64)[: len(group)], np.asarray(matrices, np.float64)[group])
    return rows, matrices, np.concatenate([exact, np.zeros((spare_rows, F))])


@pytest.mark.parametrize(("tokens", "chosen", "experts"), [(64, 4, 32), (128, 4, 32), (256, 4, 32), (256, 8, 64)])
def test_tiles_of_a_tpu_read_few_matrices_twice(tokens, chosen, experts):
    """Each tile reads the matrix of its group. Experts at random, as a router that favours none chooses them."""
    rng = np.random.default_rng(0)
    picks = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)])
    sizes = np.bincount(picks.ravel(), minlength=experts)
    reads = np.sum(-(-sizes // tile_rows(tokens * chosen, experts)))
    assert np.count_nonzero(sizes) <= reads <= 1.1 * np.count_nonzero(sizes)


def test_rows_of_a_tile_are_whole_and_bounded():
    for rows in (1, 7, 16, 100, 4096, 10_000):
        for groups in (1, 8, 128):
            found = tile_rows(rows, groups)
            assert found % 16 == 0
            assert 16 <= found <= MAX_ROWS


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_number_of_4_and_8_bits(dtype):
    stored = jnp.arange(-7, 8).astype(jnp.int4)
    sizes = [0.5, 1, 1.5, 2, 3, 4, 6]
    found = unpacked(stored, is_float4=True, dtype=dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(jnp.float32), [*(-size for size in reversed(sizes)), 0, *sizes])
    whole = jnp.arange(-128, 128, dtype=jnp.int32).astype(jnp.int8)
    np.testing.assert_array_equal(unpacked(whole, is_float4=False, dtype=dtype).astype(jnp.int32), np.arange(-128, 128))


def test_units_of_a_step_are_as_equal_as_may_be():
    numbers = (1, 8, 9, 16, 22, 23, 112)
    assert [_units_of_a_step(number, 128, is_fast=False) for number in numbers] == [1, 8, 5, 8, 8, 8, 8]
    assert [_units_of_a_step(number, 128, is_fast=True) for number in numbers] == [1, 8, 9, 16, 11, 8, 16]
    assert _units_of_a_step(3, 4096, is_fast=True) == 1
