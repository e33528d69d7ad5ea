"""What forward steps of two layers of Llama-3.1-8B cost by the estimates of TPUs' compilers, kernels not included.

The figures are of `benchmarks/results/aot-2026-11-25/steps_*.json`.
"""

import pytest

from tests.aot.test_aot_steps import compile_programs

ATTENTION, ROTATION = 275_000, 54_000  # cycles of a layer's kernels with 2,048 tokens on v6e, by their bundles
PEAK = 1_703_000  # cycles of a layer's products there, at the rate of the matrix units

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("target", "devices", "cycles", "sums"),
    [
        ("tpu-v6e", 1, 1_160_000, {}),
        ("tpu7x", 1, 895_000, {}),
        ("tpu-v5e", 4, 455_000, {"all-reduce bf16[64,4096]": 5}),  # whose time is not in it
    ],
)
def test_a_decode_step_stays_within_its_budget(target, devices, cycles, sums, tmp_path):
    """Of 64 requests; 931,000 cycles on v6e and 400,000 on v5e are the weights' way from memory."""
    only = ["--devices", str(devices), "--decode", "64", "--prefill", "--only", "forward"]
    (row,), table = compile_programs(target, "llama-3.1-8b", tmp_path, *only)
    assert row["collectives"] == sums, table
    assert row["small_operations"] <= (65 if sums else 52), table
    assert row["cycles"]["entry"] < cycles, table


def test_a_prefill_step_computes_at_six_tenths_of_the_peak(tmp_path):
    """Of 2,048 tokens on v6e, embedding and norms of two layers included. Once it was 949,000 cycles a layer beside the
    products, for copies of q and for zeros; then 338,000, half of them for rotating in arrays of half a row of lanes.
    Products took 2,530,000 a layer in tiles for 32 MiB of vector memory."""
    row, table = _prefill("tpu-v6e", 2048, tmp_path)
    assert 2 * PEAK < row["product_cycles"] < 2 * 2_250_000, table
    assert row["cycles"]["entry"] - row["product_cycles"] < 2 * 300_000, table
    assert PEAK / (row["cycles"]["entry"] / 2 + ATTENTION + ROTATION) > 0.60, table


def test_the_largest_chunk_stays_within_its_budget(tmp_path):
    """8,192 tokens on v6e: 1,860,000 a layer beside products of 9,260,000, more a token than with 2,048."""
    row, table = _prefill("tpu-v6e", 8192, tmp_path)
    assert row["product_cycles"] < 19_000_000, table
    assert row["cycles"]["entry"] < 22_800_000, table


def test_a_prefill_step_of_v5p_stays_within_its_budget(tmp_path):
    """2,048 tokens. Before an operation had 32 MiB of vector memory, one layer took 4,762,344."""
    row, table = _prefill("tpu-v5p", 2048, tmp_path)
    assert row["cycles"]["entry"] < 8_150_000, table


def _prefill(target, num_tokens, tmp_path):
    programs, table = compile_programs(
        target, "llama-3.1-8b", tmp_path, "--prefill", str(num_tokens), "--only", "forward"
    )
    (row,) = (row for row in programs if f"tok={num_tokens}" in row["program"])
    assert row["wrong"] == [], table
    return row, table
