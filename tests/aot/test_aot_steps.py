"""The step programs compile for TPU and GPU, by the accelerators' own compilers; skipped where those are not installed.

Two layers (of Gemma 3 seven: it has two kinds), one bucket of each kind: what a compiler refuses, it refuses there too.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = {"tpu-v5e": "libtpu", "tpu-v6e": "libtpu", "tpu7x": "libtpu", "h200": "jax_cuda13_plugin"}
OTHERS = {"tpu-v4": "libtpu", "tpu-v5p": "libtpu"}  # of few tests
TIERS = ("greedy", "plain", "random", "masked", "full")

ONE_STEP = ("--decode", "64", "--prefill", "--layers", "1", "--only", "forward", "--context-length", "8192")
ODD = ("--prefill", "320")  # tokens: no array of them has as many numbers as a weight

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("target", COMPILER)
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.1-8b", "gemma-3-4b"])
def test_every_program_compiles(target, model, tmp_path):
    programs, table = compile_programs(target, model, tmp_path)
    assert [row["program"] for row in programs] == [
        "forward[bs=16]",
        "forward[bs=256,tok=256]",
        "score[tok=256]",
        *(f"sample[bs=16,{tier}]" for tier in TIERS),
        "reset",
        "tables",
        "compare",
    ]
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table


@pytest.mark.parametrize("target", COMPILER)
def test_several_decode_steps_compile_to_one_program(target, tmp_path):
    programs, table = compile_programs(target, "qwen2.5-0.5b", tmp_path, "--decode-steps", "4", "--only", "decode")
    assert [row["program"] for row in programs] == [f"decode[bs=16,{tier}]" for tier in TIERS if tier != "masked"]
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table


@pytest.mark.parametrize("target", COMPILER)
def test_the_programs_of_drafts_compile(target, tmp_path):
    """And the forward passes beside them, which write tokens next to keys and values."""
    programs, table = compile_programs(
        target, "qwen2.5-0.5b", tmp_path, "--drafts", "3", "--only", "draft", "verify", "forward"
    )
    names = {row["program"] for row in programs}
    assert {"draft[bs=16]", "forward[bs=16]", *(f"verify[bs=16,{tier}]" for tier in TIERS)} <= names
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table


def test_looking_for_drafts_costs_no_more_with_many_requests(tmp_path):
    """Of 128k tokens of context: of all rows together. Once it was 1,362 MiB and 7,900,000 cycles for 256."""
    sizes = ["--decode", "16", "256", "--prefill", "64", "1024", "--drafts", "3", "--only", "draft"]
    programs, table = compile_programs("tpu-v6e", "llama-3.1-8b", tmp_path, *sizes)
    assert [row["program"] for row in programs] == ["draft[bs=16]", "draft[bs=256]"]
    for row in programs:
        assert row["temp_bytes"] < 128 * 2**20, table
        assert row["cycles"]["entry"] < 700_000, table


def test_no_block_table_is_laid_out_anew(tmp_path):
    """Gemma 3 has one for each of 7 layers here: 352,000 cycles each for 256 requests, more than all products."""
    programs, table = compile_programs("tpu-v6e", "gemma-3-4b", tmp_path, "--only", "forward")
    (row,) = (row for row in programs if "tok=256" in row["program"])
    assert row["cycles"]["entry"] - row["product_cycles"] < 1_500_000, table
    assert row["small_operations"] <= 320, table


def test_a_tpu_samples_within_its_budget(tmp_path):
    """Of 64 and of 256 rows on v6e; 1,366,000 and 1,524,000 of these are the product with the table. A turn of a loop
    is a pass of the search for top_k or top_p, of which each has 11. Without loops and branches
    `random` takes 1,770,000 and 3,121,000."""
    only = ["--decode", "64", "256", "--prefill", "--only", "sample"]
    programs, table = compile_programs("tpu-v6e", "llama-3.1-8b", tmp_path, *only)
    cycles = {row["program"]: dict(row["cycles"]) for row in programs}
    for program, most in (
        *(("sample[bs=64,greedy]", 1_400_000), ("sample[bs=64,plain]", 1_700_000), ("sample[bs=64,random]", 2_030_000)),
        *(("sample[bs=256,greedy]", 1_570_000), ("sample[bs=256,plain]", 2_870_000)),
    ):
        assert cycles[program].pop("entry") < most, table
    assert cycles["sample[bs=64,plain]"] == cycles["sample[bs=256,plain]"] == {}
    others = cycles["sample[bs=64,random]"]
    by_count, by_mass = sorted(others.pop(name) for name in [*others] if name.startswith("wide."))
    assert by_count < 87_000, table
    assert by_mass < 100_000, table
    assert sum(others.values()) < 230_000, table  # branches


@pytest.mark.parametrize("devices", ["1", "4"])
def test_a_gpu_samples_without_a_loop(devices, tmp_path):
    """A loop is no part of a CUDA graph: each of its turns would be launched by the host."""
    programs, table = compile_programs("h200", "llama-3.1-8b", tmp_path, "--devices", devices, "--only", "sample")
    assert {row["program"]: row["loops"] for row in programs if row["loops"]} == {}, table


@pytest.mark.parametrize("target", ["tpu-v5e", "tpu-v6e", "h200"])
def test_no_pass_of_a_search_for_thresholds_waits_for_another_device(target, tmp_path):
    """Devices exchange their parts of the logits once. A search is 11 passes on a TPU and 8 on a GPU; top_k and top_p
    have one each. Each pass once made a sum over devices."""
    programs, table = compile_programs(target, "llama-3.1-8b", tmp_path, "--devices", "4", "--only", "sample")
    for row in programs:
        tier = row["program"].removeprefix("sample[bs=16,").removesuffix("]")
        searches = tier in ("random", "masked", "full")
        assert row["loop_collectives"] == {}, table
        if tier != "full":  # it has more: penalties, and log-probabilities of the likeliest tokens
            assert row["loops"] == row["data_loops"] == (2 if searches and target != "h200" else 0), table
            assert sum(count for kind, count in row["collectives"].items() if "all-reduce" in kind) <= 3, table
        sizes = [math.prod(map(int, re.findall(r"\d+", kind[kind.index("[") :]))) for kind in row["collectives"]]
        of_logits = [kind for kind, size in zip(row["collectives"], sizes, strict=True) if size >= 16 * 32064]
        assert len(of_logits) == searches, table
        assert all(kind.startswith("all-to-all f32") and row["collectives"][kind] == 1 for kind in of_logits), table
        most = max(size for size in sizes if size < 16 * 32064)
        assert most <= (43_040 if tier == "full" else 64), table


def test_a_tpu_exchanges_logits_of_small_batches_only(tmp_path):
    """256 rows of 128,256 tokens are 31 MiB a device: its links would take longer than the 22 sums."""
    only = ["--devices", "4", "--decode", "256", "--prefill", "--only", "sample"]
    programs, table = compile_programs("tpu-v6e", "llama-3.1-8b", tmp_path, *only)
    (row,) = (row for row in programs if row["program"] == "sample[bs=256,random]")
    assert row["loop_collectives"] == {"all-reduce s32[1,256]": 2}, table  # of 7 thresholds at once, one a pass
    assert not any("all-to-all" in kind for kind in row["collectives"]), table


@pytest.mark.parametrize("target", ["tpu-v6e", "h200"])
def test_experts_over_four_devices_stay_where_they_are(target, tmp_path):
    """Two sums a layer and the embedding's; and no copy of a device's gates, which would be 96 MiB of scratch."""
    parts = ["--devices", "4", "--expert-parts", "4", "--only", "forward"]
    programs, table = compile_programs(target, "qwen3-30b-a3b", tmp_path, *parts)
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table
    for row, tokens in zip(programs, (16, 256), strict=True):
        assert row["collectives"] == {f"all-reduce bf16[{tokens},2048]": 5}, table
        assert row["temp_bytes"] < 64 * 2**20, table


@pytest.mark.parametrize(
    ("target", "requests", "operations", "cycles"),
    [
        ("tpu-v6e", 2, 71, 163_000),  # one request is two rows, the second padding; 85 and 193,403 without the kernels
        ("tpu-v6e", 64, 79, 205_000),  # 83 and 222,719
        ("tpu-v6e", 256, 80, 468_000),  # 92 and 533,613, without those of sorts and gathers
        ("tpu-v5e", 64, 82, 291_000),  # 91 and 366,439
        ("tpu-v5p", 256, 81, 455_000),  # 93 and 580,671
        ("tpu7x", 256, 80, 322_000),  # 92 and 392,579
        ("tpu-v4", 64, 82, 252_000),  # 91 and 326,695
    ],
)
def test_experts_of_a_decode_step_stay_within_their_budget(target, requests, operations, cycles, tmp_path):
    """Of two layers: small operations, and XLA's estimate of all but kernels. Ten of them, and 20,000 cycles, find once
    a step which requests share turns."""
    flags = ["--devices", "4", "--expert-parts", "4", "--decode", str(requests), "--prefill", "--only", "forward"]
    (row,), table = compile_programs(target, "qwen3-30b-a3b", tmp_path, *flags)
    assert row["wrong"] == [], table
    assert row["small_operations"] <= operations, table
    assert row["cycles"]["entry"] < cycles, table


def test_deepseeks_router_stays_within_its_budget(tmp_path):
    """Of three dense layers and a mixture: sigmoids, a bias of the choice and groups of experts in one kernel. Without
    it 113 small operations and 1,475,087 cycles."""
    flags = ["--layers", "4", "--devices", "4", "--expert-parts", "4", "--decode", "64", "--prefill"]
    (row,), table = compile_programs("tpu-v6e", "deepseek-v3", tmp_path, *flags, "--only", "forward")
    assert row["wrong"] == [], table
    assert row["small_operations"] <= 95, table
    assert row["cycles"]["entry"] < 1_450_000, table


def test_a_prefill_step_of_a_slice_divides_residuals_by_tokens(tmp_path):
    """Of two layers on v5e: with whole residuals it is 4,977,000 cycles and 5 sums over devices, all waited for."""
    flags = ["--devices", "4", "--decode", "64", "--prefill", "2048", "--only", "forward"]
    programs, table = compile_programs("tpu-v5e", "llama-3.1-8b", tmp_path, *flags)
    (row,) = (row for row in programs if "tok=2048" in row["program"])
    assert row["collectives"] == {
        "all-reduce bf16[2048,4096]": 1,  # of the embedding
        "all-gather bf16[2048,4096]": 3,
        "reduce-scatter bf16[512,4096]": 2,
        "collective-permute bf16[512,4096]": 12,
    }, table
    assert row["cycles"]["entry"] < 4_600_000, table


@pytest.mark.parametrize("parts", [1, 2])
def test_experts_of_two_ranks_of_two_devices_compile(parts, tmp_path):
    """Two sparse layers: XLA's partitioner aborted where both called one function within the ranks' shard_map."""
    sizes = ["--devices", "2", "--groups", "2", "--expert-parts", str(parts), "--only", "forward"]
    programs, table = compile_programs("tpu-v6e", "qwen3-30b-a3b", tmp_path, *sizes)
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table


@pytest.mark.parametrize("target", COMPILER)
@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        *((kind, 0.505) for kind in ("int8", "fp8", "w8a8_int8", "w8a8_fp8")),
        *(("fp8-block", 0.87), ("int4", 0.46), ("awq", 0.81), ("gptq-channel", 0.81), ("gptq-8-channel", 0.87)),
    ],
)
def test_weights_of_8_bits_are_widened_inside_products_only(target, quantization, share, tmp_path):
    """Their bytes are half or a quarter, but for the tables that checkpoints keep plain, and int4 in 8 bits; scratch is
    what dense weights need, and a few blocks of scales. A widened projection would be 112 MiB. Kernels have their whole
    result in memory, and 7x, with half of v6e's vector memory, has the widest one in HBM: 17.5 MiB, and a copy."""
    room = 40 if target == "tpu7x" else 24
    flags = ["--only", "forward", *ODD]
    dense, _ = compile_programs(target, "llama-3.1-8b", tmp_path, *flags)
    small, table = compile_programs(target, "llama-3.1-8b", tmp_path, *flags, "--quantization", quantization)
    assert {row["program"]: row["wrong"] for row in small if row["wrong"]} == {}, table
    for row, plain in zip(small, dense, strict=True):
        assert row["widened"] == 0
        assert row["weight_bytes"] < share * plain["weight_bytes"]
        assert row["argument_bytes"] - row["alias_bytes"] < share * (plain["argument_bytes"] - plain["alias_bytes"])
        assert row["temp_bytes"] < plain["temp_bytes"] + room * 2**20, table


FLOAT8, INT8 = "f8e4m3fn x f8e4m3fn -> f32", "s8 x s8 -> s32"


@pytest.mark.parametrize(
    ("target", "quantization", "products"),
    [
        *((target, "w8a8_int8", INT8) for target in ("tpu-v5e", "tpu-v6e")),
        *((target, "w8a8_fp8", FLOAT8) for target in ("tpu7x", "h200")),
        *((target, "int8", "bf16 x s8 -> f32") for target in ("tpu-v5e", "tpu-v6e", "tpu7x")),
        ("tpu7x", "w8a8_int8", "bf16 x s8 -> f32"),
        ("tpu-v6e", "w8a8_fp8", "bf16 x f8e4m3fn -> f32"),
    ],
)
def test_products_are_of_the_bits_that_the_flag_says(target, quantization, products, tmp_path):
    """q, k and v; output; gate and up; down: four a layer, which take numbers of 8 bits as they are. Where the chip has
    no unit for 8 bits on both sides, activations keep theirs."""
    (row,), table = compile_programs(target, "llama-3.1-8b", tmp_path, *ONE_STEP, "--quantization", quantization)
    assert row["wrong"] == [], table
    assert row["products"] == {products: 4}, row["products"]


def test_blocks_of_float8_are_multiplied_with_rows_of_float8(tmp_path):
    """By kernels that take both as they are, with no more scratch than the rows' bytes."""
    flags = ["--only", "forward", *ODD, "--quantization"]
    plain, _ = compile_programs("h200", "llama-3.1-8b", tmp_path, *flags, "fp8-block")
    rounded, table = compile_programs("h200", "llama-3.1-8b", tmp_path, *flags, "fp8-block,w8a8")
    for row, other in zip(rounded, plain, strict=True):
        assert row["wrong"] == [], table
        assert row["widened"] == 0
        assert row["weight_bytes"] == other["weight_bytes"]
        assert row["temp_bytes"] < other["temp_bytes"] + 2**20, table


def test_cublas_multiplies_float8_with_the_scales_outside(tmp_path, monkeypatch):
    """As an autotuner may choose on the device; without one, XLA takes kernels of its own."""
    monkeypatch.setenv("XLA_FLAGS_OF_TARGET", "--xla_gpu_enable_triton_gemm=false")
    (row,), table = compile_programs("h200", "llama-3.1-8b", tmp_path, *ONE_STEP, "--quantization", "w8a8_fp8")
    assert row["wrong"] == [], table
    assert row["products"] == {"__cublas$lt$matmul$f8": 4}, row["products"]


@pytest.mark.parametrize(
    ("target", "page_size", "kv_dtype", "devices"),
    [
        *((target, "32", "int8", "1") for target in ("tpu-v5e", "tpu-v6e", "tpu7x", "h200")),
        *(("tpu-v6e", "64", "int8", "4"), ("h200", "16", "int8", "4"), ("tpu-v6e", "32", "float8_e4m3fn", "1")),
    ],
)
def test_a_cache_of_8_bits_compiles(target, page_size, kv_dtype, devices, tmp_path):
    """Written in place, never copied; int8 with its scales takes 33/64 of bfloat16's bytes."""
    flags = ["--kv-dtype", kv_dtype, "--page-size", page_size, "--devices", devices, "--only", "forward", "compare"]
    programs, table = compile_programs(target, "llama-3.1-8b", tmp_path, *flags)
    assert len(programs) == 3
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table
    for row in programs:
        assert row["temp_bytes"] < 64 * 2**20, table


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_one_request_takes_its_row_out_of_a_table_that_stays_where_it_is(quantization, tmp_path):
    """A slice of one row had XLA:TPU copy the table of 500 MiB into another layout, at every step."""
    flags = ["--decode", "1", "--prefill", "--layers", "1", "--only", "forward", "--context-length", "8192"]
    (row,), table = compile_programs("tpu-v6e", "llama-3.1-8b", tmp_path, *flags, "--quantization", quantization)
    assert row["temp_bytes"] < 16 * 2**20, table


@pytest.mark.parametrize("target", ["tpu-v6e", "tpu7x", "h200"])
def test_a_tied_table_of_8_bits_over_four_devices(target, tmp_path):
    """It is looked up and multiplied with: a quarter of it in float32 would be 130 MiB, in bfloat16 65 MiB."""
    flags = ["--devices", "4", "--only", "forward", "sample", "--quantization", "int8", *ODD]
    programs, table = compile_programs(target, "qwen2.5-0.5b", tmp_path, *flags)
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table
    for row in programs:
        assert row["widened"] == 0
        assert row["temp_bytes"] < 32 * 2**20, table


@pytest.mark.parametrize("target", ["tpu-v6e", "h200"])
@pytest.mark.parametrize("quantization", ["int8", "awq", "mxfp4"])
def test_experts_of_8_and_4_bits_are_widened_by_the_kernels(target, quantization, tmp_path):
    """A device's gates in bfloat16 would be 96 MiB."""
    flags = ["--devices", "4", "--expert-parts", "4", "--only", "forward", "--quantization", quantization, *ODD]
    programs, table = compile_programs(target, "qwen3-30b-a3b", tmp_path, *flags)
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table
    for row in programs:
        assert row["widened"] == 0
        assert row["temp_bytes"] < 64 * 2**20, table


@pytest.mark.parametrize("target", ["tpu-v5e", "tpu-v6e", "tpu7x", "h200"])
@pytest.mark.parametrize("devices", ["1", "4"])
def test_sizes_that_no_tile_divides_are_not_copied(target, devices, tmp_path):
    """gpt-oss: 2880 columns. Its table alone is 1.1 GiB, the scales of a layer's experts are 95 MiB."""
    flags = ["--devices", devices, "--only", "forward", "--quantization", "mxfp4", *ODD]
    programs, table = compile_programs(target, "gpt-oss-20b", tmp_path, *flags)
    assert {row["program"]: row["wrong"] for row in programs if row["wrong"]} == {}, table
    for row in programs:
        assert row["widened"] == 0
        assert row["temp_bytes"] < 96 * 2**20, table


@pytest.mark.parametrize("target", ["tpu-v6e", "h200"])
def test_the_memory_plan_is_what_the_compiler_then_asks_for(target, tmp_path):
    """Of the model's widths, so that the workspace is not lost beside the rest; within 5 %."""
    compiler = (COMPILER | OTHERS)[target]
    if importlib.util.find_spec(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    report = tmp_path / "report.json"
    sizes = ["--model", "llama-3.1-8b", "--layers", "2", "--json", str(report)]
    command = [sys.executable, "benchmarks/aot/memory_plan.py", "--target", target, *sizes]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr[-3000:]
    figures = json.loads(report.read_text())
    assert abs(figures["ratio"] - 1) < 0.05, figures
    assert figures["fits"], figures


def compile_programs(target, model, tmp_path, *flags):
    compiler = (COMPILER | OTHERS)[target]
    if importlib.util.find_spec(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    report = tmp_path / "report.json"
    layers = "7" if model == "gemma-3-4b" else "2"
    sizes = ["--layers", layers, "--decode", "16", "--prefill", "256", "--json", str(report), *flags]
    command = [sys.executable, "benchmarks/aot/aot_steps.py", "--target", target, "--model", model, *sizes]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr[-3000:]
    return json.loads(report.read_text())["programs"], done.stdout


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    if "XLA_FLAGS_OF_TARGET" in kept:  # the tests' own flags are for CPUs
        kept["XLA_FLAGS"] = kept["XLA_FLAGS_OF_TARGET"]
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no compiler of TPUs")
@pytest.mark.parametrize("model", ["qwen3-30b-a3b v6e-4", "gpt-oss-120b v6e-8"])
def test_experts_that_no_token_goes_to_are_not_read(model, tmp_path):
    """By one request, and nothing of all experts is brought before kernels: once all scales of gpt-oss were."""
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        "benchmarks/paper/mixture_paper.py",
        "--only",
        model,
        "--requests",
        "1",
        "--json",
        str(report),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr[-3000:]
    (row,) = json.loads(report.read_text())["rows"]
    assert row["brought MiB a layer"] == 0
    assert row["read MiB a layer"] <= 1.1 * row["hit MiB a layer"] < 0.2 * row["all experts MiB a layer"]
