"""The TPU kernels of ragged paged attention, interpreted on this host, against the oracle of the one case suite.

No mode of interpretation finds every fault, so some cases run in all three; and a test plants faults to show that they
would be found, in the slow tier.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu import tpu_config, tpu_kernel, tpu_pages, tpu_rows, tpu_short
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, Case, attend, compiled, interpreted, make

RUNNABLE = [case for case in CASES if case.page_size % (8 if case.kv_dtype == "float32" else 32) == 0]
SMALL = Case("small", ((150, 3), (20, 30)), num_heads=2, num_kv_heads=1, padding_tokens=3)
SIMULATED = [
    SMALL,
    *(case for case in CASES if case.name in ("mixed, window", "rows of one tile", "much padding")),
    *(case for case in CASES if case.name in ("everything", "decode, padded")),
]

QUICKLY_SIMULATED = (("small", "on_wait"),)


@pytest.fixture(autouse=True)
def _fresh_simulator():
    pltpu.reset_tpu_interpret_mode_state()
    yield
    pltpu.reset_tpu_interpret_mode_state()


@pytest.fixture
def plant(monkeypatch):
    """Replaces a method of the kernel; what was traced with the other one is forgotten, there and back."""

    def replace(owner, name, method):
        monkeypatch.setattr(owner, name, method)
        jax.clear_caches()

    yield replace
    jax.clear_caches()


@pytest.mark.parametrize("case", interpreted(RUNNABLE), ids=str)
def test_matches_the_oracle(case):
    assert _error(case, "plain") < 1e-5


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, marks=() if (case.name, mode) in QUICKLY_SIMULATED else pytest.mark.slow)
        for case in SIMULATED
        for mode in ("on_wait", "eager")
    ],
    ids=str,
)
@pytest.mark.slow  # test_matches_the_oracle interprets the same kernel
def test_matches_the_oracle_on_a_simulated_tpu(case, mode):
    assert _error(case, mode) < 1e-5
    assert not _races()


SHORT = ((0, 1), (63, 1), (127, 1), (128, 1), (200, 1), (255, 1), (256, 1), (300, 1), (511, 1), (512, 1), (700, 1))


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("plain", {}),
        *(
            pytest.param(name, traits, marks=pytest.mark.slow)
            for name, traits in (
                ("window", {"window": 40}),
                ("shared lanes", {"head_size": 32}),
                ("int8", {"kv_dtype": "int8"}),
            )
        ),
    ],
)
def test_the_last_keys_of_a_request_are_computed_with_as_few_as_hold_them(name, traits, monkeypatch):
    """A quarter, a half, or all of a block; before them whole blocks."""
    case = Case(name, SHORT, kind="decode", head_size=128, page_size=32, num_heads=2, num_kv_heads=1)
    sizes = {"rows": 64, "keys": 4 * LANES, "heads": 2, "ones": 0}
    monkeypatch.setattr(tpu_config, "_sizes", lambda *_: sizes)
    seen = []
    add_keys = tpu_kernel._add_keys
    monkeypatch.setattr(tpu_kernel, "_add_keys", lambda *args: (seen.append(args[8]), add_keys(*args)))
    assert _error(dataclasses.replace(case, **traits), "plain") < 1e-5
    assert sorted(seen) == [LANES, 2 * LANES, 4 * LANES, 4 * LANES]


SHARING = (1, 63, 127, 128, 129, 2, 256, 500, 100, 5, 257, 200, 32, 255)  # of the first eight, and of the others


@pytest.mark.parametrize(
    "traits",
    [
        {},  # whose program test_nan_in_one_request_of_a_shared_grid_step_reaches_no_other has as well
        *(
            pytest.param(traits, marks=pytest.mark.slow)
            for traits in (
                {"head_size": 32, "sinks": True, "page_size": 16},
                {"kv_dtype": "int8", "page_size": 64},
                {"num_heads": 16, "sinks": True, "soft_cap": 4.0, "page_size": 128},
                {"num_heads": 2, "page_size": 64},
                {"num_heads": 10, "window": 300},
                {"num_heads": 40, "sinks": True, "window": 256},
                {"head_size": 256, "soft_cap": 4.0},
                {"kv_dtype": "int8", "num_heads": 9, "num_kv_heads": 3, "sinks": True, "soft_cap": 4.0},
                {"kv_dtype": "int8", "num_heads": 16, "page_size": 128, "window": 256},
                {"kv_dtype": "int8", "head_size": 64},
                {"kv_dtype": "float8_e5m2"},
                {"kv_dtype": "float8_e4m3fn", "head_size": 64},
                {"kind": "prefill", "num_decodes": 12},
            )
        ),
    ],
    ids=str,
)
@pytest.mark.slow  # below are shared grid steps with a shorter window
def test_short_requests_share_grid_steps(traits):
    """With those of the same eight rows, up to four in one, or two of more than 128 keys; long ones and padding between
    them."""
    case = dataclasses.replace(_sharing(SHARING, 24), **traits)
    data, step = make(case), _step(_of_any_lengths(case))
    out = step(data)
    assert np.isfinite(out).all()
    assert np.abs(out[: len(SHARING)] - data.expected).max() < 1e-5
    assert step.grid_steps == [(128, 4), (256, 2)]


@pytest.mark.slow  # below is a shorter window
@pytest.mark.parametrize("window", [200, 128])
def test_requests_of_more_keys_than_the_window_have_grid_steps_of_their_own(window, monkeypatch):
    grid_steps = _blocks_of_512_keys(monkeypatch)
    assert _error(dataclasses.replace(_sharing(SHARING, 24), window=window), "plain") < 1e-5
    assert [each.size for each in grid_steps] == [128]


@pytest.mark.parametrize(
    ("heads", "dtype", "kv_dtype"),
    [
        ((8, 2), "bfloat16", "float32"),
        pytest.param((8, 2), "float32", "float32", marks=pytest.mark.slow),
        pytest.param((16, 2), "float32", "float32", marks=pytest.mark.slow),
        pytest.param((3, 3), "bfloat16", "float32", marks=pytest.mark.slow),
        pytest.param((8, 2), "bfloat16", "int8", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_result_of_a_request_is_the_same_to_the_bit_whatever_requests_stand_beside_it(heads, dtype, kv_dtype):
    """In grid steps with others, in another place of one, and in one of its own."""
    N, K = heads
    traits = {"num_heads": N, "num_kv_heads": K, "kv_dtype": kv_dtype, "sinks": True, "soft_cap": 4.0}
    case = dataclasses.replace(_sharing((1, 127, 128, 129, 200, 256, 257), 8), **traits)
    data, step = make(case), _step(_of_any_lengths(case), dtype)
    out, count = step(data), data.num_requests
    for order in (range(count)[::-1], [4, 2], [5, 1, 6], [0], [3]):
        rows = np.array([*order, *[row for row in range(8) if row not in order]])
        moved = {name: getattr(data, name)[rows] for name in ("q", "kv_len", "block_table")}
        found = step(dataclasses.replace(data, num_requests=len(order), **moved))
        np.testing.assert_array_equal(found[: len(order)], out[list(order)])
    assert {size for size, _ in step.grid_steps} == {128, 256}


@pytest.mark.slow  # above are rows alone
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_step_of_two_rows_in_which_none_shares_a_grid_step_gives_the_same_bits(dtype):
    traits = {"num_heads": 8, "num_kv_heads": 2, "sinks": True, "soft_cap": 4.0}
    case = dataclasses.replace(_sharing((1, 127, 128, 129, 200, 256, 257), 8), **traits)
    data, step = make(case), _step(_of_any_lengths(case), dtype)
    out, two = step(data), _Step(case, dtype)
    assert step.grid_steps
    for pair in ([0, 1], [2, 3], [4, 5], [6, 0]):
        rows = {name: getattr(data, name)[np.array(pair)] for name in ("q", "kv_len", "block_table")}
        few = dataclasses.replace(data, num_requests=2, **rows)
        np.testing.assert_array_equal(two(few), out[pair])
    assert not two.grid_steps


@pytest.mark.slow  # a wide table is above
@pytest.mark.parametrize("heads", [(8, 2), (4, 1)], ids=str)
def test_short_requests_share_grid_steps_where_the_block_table_is_narrow(heads):
    """And NaN in one of them reaches no other."""
    N, K = heads
    case = dataclasses.replace(_sharing((40, 64, 1, 33), 4), table_width=2, num_heads=N, num_kv_heads=K)
    data, step = make(case), _step(_of_any_lengths(case))
    np.testing.assert_allclose(step(data), data.expected, rtol=0, atol=1e-5)
    assert step.grid_steps
    _assert_that_nan_reaches_no_other(case, [1])


def test_short_requests_with_a_shorter_window_have_grid_steps_of_their_own(monkeypatch):
    grid_steps = _blocks_of_512_keys(monkeypatch)
    assert _error(dataclasses.replace(_sharing((100, 100)), window=100), "plain") < 1e-5
    assert not grid_steps


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_grid_steps_of_random_lengths_match_the_oracle(seed, monkeypatch):
    _blocks_of_512_keys(monkeypatch)
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(24) < seed / 5, rng.integers(1, 257, 24), rng.integers(1, 600, 24))
    assert _error(_sharing(lengths[: rng.integers(1, 25)].tolist(), 24), "plain") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
@pytest.mark.parametrize("mode", ["on_wait", "eager"])
def test_shared_grid_steps_match_the_oracle_on_a_simulated_tpu(mode, kv_dtype, monkeypatch):
    _blocks_of_512_keys(monkeypatch)
    case = dataclasses.replace(_sharing((60, 128, 300, 7, 90, 200, 256), 8), kv_dtype=kv_dtype)
    assert _error(case, mode) < 1e-5
    assert not _races()


@pytest.mark.parametrize(
    "heads", [(8, 2), *(pytest.param(heads, marks=pytest.mark.slow) for heads in ((16, 2), (4, 1)))], ids=str
)
def test_nan_in_one_request_of_a_shared_grid_step_reaches_no_other(heads):
    """Of 63 keys, and of 256: three others share the grid step of the first, one that of the second."""
    N, K = heads
    _assert_that_nan_reaches_no_other(dataclasses.replace(_sharing(SHARING, 24), num_heads=N, num_kv_heads=K), [1, 6])


def _assert_that_nan_reaches_no_other(case, broken):
    data = make(case)
    for row in broken:
        data.kv_pages[data.block_table[row, 0], :, 3] = np.nan
    out = _step(_of_any_lengths(case))(data)
    assert np.isnan(out[broken]).all()
    others = [row for row in range(data.num_requests) if row not in broken]
    np.testing.assert_allclose(out[others], data.expected[others], atol=1e-5)


@pytest.mark.slow
def test_values_of_others_in_a_shared_grid_step_are_found(plant, monkeypatch):
    _blocks_of_512_keys(monkeypatch)
    plant(tpu_short, "_keep", lambda values, kept: values)
    assert not _error(_sharing(SHARING), "plain") < 1e-5


def _sharing(lengths, rows=16):
    """Decode of so many keys each, padded to so many rows."""
    before = tuple((int(keys) - 1, 1) for keys in lengths)
    sizes = {"head_size": 128, "page_size": 32, "table_width": 40, "num_heads": 8, "num_kv_heads": 2}
    return Case("sharing", before, kind="decode", padding_rows=rows - len(before), **sizes)


def _of_any_lengths(case):
    return dataclasses.replace(case, lengths=(), padding_rows=0)


class _Step:
    """A decode step with blocks of 512 keys, interpreted, of any lengths: each number of rows is compiled once."""

    def __init__(self, case, dtype="float32"):
        self._attend = compiled(case, make(case), "tpu", Target("tpu", "v6e", "plain"), dtype)
        self.grid_steps = []
        """Keys and requests of each kind of shared grid step, as they are traced."""

    def __call__(self, data):
        with pytest.MonkeyPatch.context() as patch:
            traced = _blocks_of_512_keys(patch)
            out = self._attend(data)
        self.grid_steps = [(each.size, len(each.requests)) for each in traced] or self.grid_steps
        return out


@functools.cache
def _step(case, dtype="float32"):
    """Of tests that differ in numbers alone, one compiles it."""
    return _Step(case, dtype)


def _blocks_of_512_keys(monkeypatch):
    """As of a device, where four short requests share a grid step. Returns these steps, as they are traced."""
    sizes = {"rows": 64, "keys": 4 * LANES, "heads": 2, "ones": 0}
    monkeypatch.setattr(tpu_config, "_sizes", lambda *_: sizes)
    grid_steps = []
    attend = tpu_short.ShortRequests.attend
    monkeypatch.setattr(tpu_short.ShortRequests, "attend", lambda self: (grid_steps.append(self), attend(self)))
    return grid_steps


@pytest.mark.slow  # the shared grid steps above have such sums
def test_sums_without_the_matrix_unit_match_the_oracle():
    """As on generations whose matrix unit has no columns to spare."""
    assert _error(SMALL, "plain", "v5e") < 1e-5


@pytest.mark.parametrize("kind", [pytest.param("prefill", marks=pytest.mark.slow), "decode"])
def test_bfloat16_accumulates_in_float32(kind):
    case = Case("dtype", ((236, 1), (0, 1)), kind=kind, num_heads=4)
    out = attend(case, make(case), "tpu", Target("tpu", "v6e", "plain"), dtype="bfloat16")
    assert out.dtype == "bfloat16"
    exact = attend(case, make(case), "reference", dtype="bfloat16")
    np.testing.assert_allclose(out.astype(np.float32), exact.astype(np.float32), atol=1e-2)


@pytest.mark.slow  # it tests the simulator
def test_a_missing_wait_is_found(plant):
    plant(tpu_pages.KeyBuffers, "wait", lambda *_: None)
    assert not _error(SMALL, "on_wait") < 1e-5  # a copy that nobody waits for never happens
    assert _has_race(SMALL)


@pytest.mark.slow
def test_a_wrong_slot_is_found(plant):
    start, wait = tpu_pages.KeyBuffers.start, tpu_pages.KeyBuffers.wait
    plant(tpu_pages.KeyBuffers, "start", lambda self, i, at, slot: start(self, i, at, 0))
    plant(tpu_pages.KeyBuffers, "wait", lambda self, i, at, slot: wait(self, i, at, 0))
    assert not _error(SMALL, "on_wait") < 1e-5


@pytest.mark.slow
def test_a_page_out_of_range_is_found(plant):
    page = tpu_pages.QueryBlocks.page
    plant(tpu_pages.QueryBlocks, "page", lambda self, *args: page(self, *args) + 1000)
    with pytest.raises(Exception, match=r"(?i)out of bounds|out-of-bounds|range"):
        _error(SMALL, "on_wait")


@pytest.mark.slow
def test_a_read_of_rows_that_nobody_wrote_is_found(plant):
    plant(tpu_pages.KeyBuffers, "clear_tail", lambda *_: None)
    for mode in ("plain", "on_wait"):
        assert not _error(SMALL, mode) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["wait", "wait_leaving"])
def test_a_missing_wait_for_queries_or_outputs_is_found(wait, plant):
    plant(tpu_rows.ChunkRows, wait, lambda *_: None)
    assert not _error(SMALL, "on_wait") < 1e-5


@pytest.mark.slow  # it tests that the case "much padding" does, which a fault of tests/faults does too
def test_rows_that_nobody_clears_are_found(plant):
    """Behind the last request's tile, XLA allots memory and writes nothing."""
    plant(tpu_rows.ChunkRows, "clear_rest", lambda *_: None)
    (case,) = (case for case in CASES if case.name == "much padding")
    assert not _error(case, "plain") < 1e-5


@pytest.mark.slow
def test_rows_of_a_tile_that_two_requests_share_are_kept(plant):
    plant(tpu_rows.ChunkRows, "join", lambda *_: None)
    assert not _error(SMALL, "on_wait") < 1e-5


def _error(case, mode, kind="v6e"):
    """The largest one of a real row; NaN where anything at all is not finite."""
    data = make(case)
    out = attend(case, data, "tpu", Target("tpu", kind, mode))
    if not np.isfinite(out).all():
        return np.nan
    return np.abs(out[: len(data.expected)] - data.expected).max(initial=0.0)


def _has_race(case):
    """JAX 0.12 raises at the first race, and earlier ones note it and go on."""
    try:
        _error(case, "eager")
    except Exception as error:
        return "RACE DETECTED" in str(error)
    return _races()


def _races():
    return interpret_pallas_call.races is not None and interpret_pallas_call.races.races_found
