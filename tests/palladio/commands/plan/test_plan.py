"""`palladio plan`: slices by name, sizes and rates against sums done by hand, and the command as a user types it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support import checkpoints
from palladio.__main__ import main
from palladio.commands.plan import plan_worker
from palladio.model.base.module import Initializer
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.loading.orbax_weights import convert
from palladio.model.loading.stored_config import agree_with_weights
from palladio.processes import child
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.deployment import Deployment, Roofline
from palladio.runtime.planning.hardware import CHIPS, SLICES, find_slice
from tests.model.gguf_files import as_gguf
from tests.tiny_model import make_checkpoint

ROOT = Path(__file__).resolve().parents[4]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,  # of its model card's 32
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
QWEN3_30B = checkpoints.QWEN3_30B | {"num_hidden_layers": 2}
Run = Callable[..., tuple[int, str, str]]
LAYER = 218_112_000
PARAMETERS = 8_030_261_248 - 30 * LAYER  # as its model card counts them


WIDE = LLAMA | {"intermediate_size": 300_000}  # 17 GB


def deployment(topology: str, tp_size: int, model: dict[str, Any] = LLAMA, **flags: object) -> Deployment:
    config = EngineConfig.from_flags({"model_path": "m", "tp_size": tp_size, **flags})
    return Deployment.of(config, ModelConfig.from_hf(model), find_slice(topology))


def test_slices_by_their_names() -> None:
    assert (SLICES["v5e-4"].num_devices, SLICES["v5e-4"].num_hosts, SLICES["v5e-4"].topology) == (4, 1, "v5e:2x2")
    assert (SLICES["v5p-8"].num_devices, SLICES["v5p-8"].topology) == (4, "v5p:2x2x1")  # its name counts cores
    assert (SLICES["tpu7x-8"].num_devices, SLICES["tpu7x-8"].num_hosts) == (8, 1)
    assert SLICES["v6e-16"].num_hosts == 4
    assert find_slice("v5litepod-8") is SLICES["v5e-8"]
    with pytest.raises(ConfigError, match=r"unknown --topology A100; known: a100-40-1, a100-40-2, .*a100-80-8$"):
        find_slice("A100")
    with pytest.raises(ConfigError, match="unknown --topology v6e-5; known: v6e-1, v6e-4, v6e-8, "):
        find_slice("v6e-5")
    with pytest.raises(ConfigError, match="known: v4-…, v5e-…"):
        find_slice("abacus")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        *(("H100", "h100-1"), ("h100-1", "h100-1"), ("8xH200", "h200-8"), ("H200-141GB", "h200-1")),
        *(("B200-8", "b200-8"), ("B200-192GB", "b200-1"), ("L40S-48GB", "l40s-1")),
        *(("A100-80GB", "a100-80-1"), ("a100-40-4", "a100-40-4"), ("8xA100-80GB", "a100-80-8"), ("L4", "l4-1")),
        *(("L40S-2", "l40s-2"), ("GH200", "gh200-1"), ("NVIDIA H100 80GB", "h100-1"), ("H100-SXM-8", "h100-8")),
        *(("4 x L4", "l4-4"), ("V6E-8", "v6e-8"), ("H100-80GB-8", "h100-8"), ("A100-SXM4-40GB", "a100-40-1")),
    ],
)
def test_gpus_by_the_names_that_people_type(typed: str, name: str) -> None:
    assert find_slice(typed) is SLICES[name]
    assert SLICES[name].num_hosts == 1


@pytest.mark.parametrize(("topology", "tp_size"), [("h200-1", 1), ("v6e-4", 4)])
def test_weights_and_cache_of_a_known_model(topology: str, tp_size: int) -> None:
    one = deployment(topology, tp_size)
    assert one.num_parameters == PARAMETERS
    norms = (2 * 2 + 1) * 4096 * 2 * (1 - 1 / tp_size)  # which every device has whole
    padded = sum(one.layout.config.vocab_size - 128256 for _ in range(2)) * 4096 * 2 / tp_size
    assert one.weight_bytes == pytest.approx(PARAMETERS * 2 / tp_size + norms + padded)
    assert one.bytes_per_token == 2 * 2 * 8 * 128 * 2 / tp_size


@pytest.mark.parametrize(("topology", "tp_size"), [("h200-1", 1), ("v6e-4", 4)])
def test_a_cache_of_int8_has_a_scale_for_each_key_and_value(topology: str, tp_size: int) -> None:
    one = deployment(topology, tp_size, kv_cache_dtype="int8")
    assert one.bytes_per_token == 2 * 2 * 8 * (128 + 4) / tp_size


@pytest.mark.parametrize("tp_size", [1, 4])
def test_weights_of_8_bits_take_half(tp_size: int) -> None:
    """Values of one byte, a scale of four for each output of each matrix, and norms as they were."""
    model = ModelConfig.from_hf(LLAMA)
    model = model.with_quantization("int8")
    config = EngineConfig.from_flags({"model_path": "m", "tp_size": tp_size})
    one, plain = Deployment.of(config, model, find_slice("v6e-4")), deployment("v6e-4", tp_size)
    norms = (2 * 2 + 1) * 4096
    scales = 2 * one.layout.config.vocab_size + 2 * (6144 + 4096 + 2 * 14336 + 4096)
    replicated = 2 * 2 * 4096  # scales of the two projections back, of which each device has all
    values = (plain.weight_bytes - 2 * norms) // 2
    assert one.num_parameters == PARAMETERS
    assert one.weight_bytes == values + 2 * norms + 4 * ((scales - replicated) // tp_size + replicated)


def test_layers_with_a_window_keep_and_read_the_newest_tokens_only() -> None:
    windowed = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 1024}
    one, whole = deployment("h200-1", 1, windowed), deployment("h200-1", 1)
    assert one.cache_bytes(512) == whole.cache_bytes(512) == 512 * one.bytes_per_token
    assert one.cache_bytes(8192) == 1024 * one.bytes_per_token == whole.cache_bytes(8192) / 8
    flags = {"max_total_tokens": 16384}
    memory = deployment("h200-1", 1, **flags).plan(EngineConfig.from_flags({"model_path": "m", **flags}), 0)
    assert (whole.num_requests(8192, memory), one.num_requests(8192, memory)) == (2, 15)
    short = deployment("h200-1", 1, windowed, context_length=1024)
    assert short.shape.page_groups.windows == (), "no query sees less than all tokens"


def test_rates_are_those_of_bandwidth_and_matrix_units() -> None:
    one = deployment("h200-1", 1)
    chip, table = CHIPS["h200"], 128256 * 4096 * 2
    step = Roofline(one).decode_seconds(1, 1000)
    assert step == pytest.approx((PARAMETERS * 2 - table + 1000 * one.bytes_per_token) / chip.bandwidth)
    tokens = 128256 * 4096
    assert Roofline(one).prefill_rate() == pytest.approx(chip.flops / (2 * (PARAMETERS - 2 * tokens)))
    wide = Roofline(deployment("h200-1", 1, max_running_requests=4096)).decode_seconds(4096, 1)
    assert wide == pytest.approx(2 * (PARAMETERS - tokens) * 4096 / chip.flops)
    four = Roofline(deployment("v6e-4", 4))
    sums = 5 * 2 * 3 / 4 * 4096 * 2 / CHIPS["v6e"].link
    assert four.decode_seconds(1, 0) > sums
    assert four._sums(1) == pytest.approx(sums)


def test_experts_are_all_stored_and_few_of_them_computed() -> None:
    """The numbers of its model card: 30.5 billion parameters, of which 3.3 billion are active."""
    one, layers = deployment("h200-1", 1, QWEN3_30B), 2
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128 + 2 * 2048
    expert, tables = 3 * 2048 * 768, 2 * 151936 * 2048
    assert one.num_parameters == layers * (attention + 128 * 2048 + 128 * expert) + tables + 2048
    assert one.num_parameters + 46 * (attention + 128 * 2048 + 128 * expert) == 30_532_122_624
    assert one.num_active_parameters == one.num_parameters - layers * 120 * expert
    assert one.expert_bytes == layers * 128 * expert * 2
    chip = CHIPS["h200"]
    for num_requests, share in ((1, 8 / 128), (64, 1 - (120 / 128) ** 64)):
        read = one.weight_bytes - 151936 * 2048 * 2 - (1 - share) * one.expert_bytes
        assert Roofline(one).decode_seconds(num_requests, 0) == pytest.approx(read / chip.bandwidth)
    rate = chip.flops / (2 * (one.num_active_parameters - tables))
    assert Roofline(one).prefill_rate() == pytest.approx(rate)


@pytest.mark.parametrize("ep_size", [1, 2, 4])
def test_experts_over_four_devices(ep_size: int) -> None:
    one, four = deployment("h200-1", 1, QWEN3_30B), deployment("v6e-4", 4, QWEN3_30B, ep_size=ep_size)
    assert four.expert_bytes == one.expert_bytes / 4
    whole = (2 * (2 * 2048 + 2 * 128 + 128 * 2048) + 2048) * 2  # norms and routers
    padded = 2 * (four.layout.config.vocab_size - 151936) * 2048 * 2
    assert four.weight_bytes == pytest.approx((one.weight_bytes - whole + padded) / 4 + whole)


def test_a_plan_with_experts(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    code, out, _ = run("--model-path", str(tmp_path), "--topology", "v6e-8", "--ep-size", "4")
    assert code == 0
    assert out.splitlines()[-1].endswith("--ep-size 4 --tp-size 8")
    code, _, errors = run("--model-path", str(tmp_path), "--topology", "v6e-4", "--ep-size", "3")
    assert (code, "--ep-size 3 must divide --tp-size 4" in errors) == (2, True)
    code, out, _ = run("--model-path", str(tmp_path), "--ep-size", "8")
    assert code == 0
    assert {line.split()[1] for line in out.splitlines()[1:-1]} == {"8"}  # no slice of fewer devices


def test_groups_of_devices_are_each_as_one() -> None:
    one, two = deployment("v6e-4", 4), deployment("v6e-8", 4, dp_size=2)
    assert (two.weight_bytes, two.bytes_per_token) == (one.weight_bytes, one.bytes_per_token)
    assert two.limits.total_running == 2 * one.limits.total_running
    wanted = EngineConfig.from_flags({"model_path": "m", "max_total_tokens": 100_000})
    half, whole = two.plan(wanted, 0), one.plan(wanted, 0)
    assert (half.num_tokens, half.total_tokens, whole.total_tokens) == (50_016, 100_032, 100_000)
    assert "50,016 tokens in pages of 32, for each of 2 data-parallel ranks" in "\n".join(half.table())
    assert Roofline(two).decode_seconds(8, 100) == Roofline(one).decode_seconds(8, 100)
    assert Roofline(two).prefill_rate() == 2 * Roofline(one).prefill_rate()


def test_a_plan_with_groups(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("--model-path", str(tmp_path), "--topology", "v6e-8", "--dp-size", "2")
    assert code == 0
    assert "on v6e-8: 8 of 8 devices" in out
    assert out.splitlines()[-1].endswith("--dp-size 2 --tp-size 4")
    code, _, errors = run("--model-path", str(tmp_path), "--topology", "v6e-8", "--dp-size", "4", "--tp-size", "4")
    assert code == 2
    assert "--dp-size 4 × --tp-size 4 needs that many devices; v6e-8 has 8" in errors


def test_a_plan_traces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are written down: tracing the initial values of a model of 126 layers takes half a minute."""

    def refuse(*_: object) -> None:
        raise AssertionError("an initial value is traced")

    monkeypatch.setattr(Initializer, "__call__", refuse)
    assert deployment("h200-8", 8, LLAMA | {"num_hidden_layers": 32}).num_parameters == 8_030_261_248


def test_what_does_not_fit_says_so() -> None:
    one = deployment("v5e-1", 1, WIDE)
    with pytest.raises(ConfigError, match="no memory is left for the KV cache"):
        one.plan(EngineConfig.from_flags({"model_path": "m"}), one.estimated_workspace())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: exit code, output, errors. LLAMA is the folder's model."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def in_this_process(command: list[str], environment: Mapping[str, str], words: bytes) -> int:
        return plan_worker.answer(words)

    def call(*words: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(child, "run_process", in_this_process)
            code = main(["plan", *words])
        return code, *capsys.readouterr()

    return call


@pytest.mark.slow  # the other tests run the command in this process
def test_as_a_user_types_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 32}))
    command = [sys.executable, "-m", "palladio", "plan", "--model-path", ".", "--topology", "h200-1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith(f"{tmp_path.name} (8.03 billion parameters, bfloat16) on h200-1: 1 of 1 devices")
    assert last == "  palladio serve --model-path ."


def test_without_a_model_it_is_about_the_embedded_one(run: Run) -> None:
    code, said, errors = run("--topology", "v6e-1")
    assert (code, errors) == (0, "")
    assert said.startswith("default_checkpoint (0.00 billion parameters")
    assert "  palladio serve --model-path=palladio-default-v3" in said.splitlines()


def test_a_converted_checkpoint_has_the_bits_that_it_was_converted_to(tmp_path: Path, run: Run) -> None:
    source = make_checkpoint(tmp_path / "source", "qwen3")
    published = ModelConfig.from_hf(*read_model_dir(source))
    model = agree_with_weights(source, published, "safetensors", "int8")
    convert(source, tmp_path / "out", model, "float32", lambda done, total: None)
    code, out, _ = run("--model-path", str(tmp_path / "out"), "--topology", "v5e-1")
    assert code == 0
    assert "int8 W8A16" in out.splitlines()[0]


@pytest.mark.parametrize("topology", ["v5e-1", pytest.param("v5e-4", marks=pytest.mark.slow)])
def test_a_split_gguf_file_has_the_bits_that_its_types_become(topology: str, tmp_path: Path, run: Run) -> None:
    path = make_checkpoint(tmp_path / "source", "qwen3", num_hidden_layers=1, hidden_size=64, intermediate_size=96)
    file = as_gguf(path, "qwen3", lambda name: "Q5_0" if "down_proj" in name else "Q4_1", num_parts=2)
    for given in (file, file.parent):
        code, out, errors = run("--model-path", str(given), "--topology", topology)
        assert (code, errors) == (0, "")
        assert "int4 W4A16, a scale per 32 inputs and float32 zero points" in out.splitlines()[0]
    file.with_name("m-00002-of-00002.gguf").unlink()
    code, out, errors = run("--model-path", str(file), "--topology", topology)
    assert (code, out) == (2, "")
    assert "is one of 2 parts, and m-00002-of-00002.gguf missing: download every part" in errors


def test_a_table_of_all_and_one_in_detail(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    code, out, _ = run("--model-path", str(tmp_path / "config.json"))
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert {"v5e-4", "v6e-8", "v5p-8", "tpu7x-8", "h200-1"} <= rows.keys()
    assert "v6e-16" not in rows  # of several hosts: one suffices
    assert "no memory is left" in rows["v5e-1"]
    code, out, _ = run("--model", str(tmp_path), "--topology=v5e-8", "--context-length", "4096")
    assert code == 0
    assert "vocabulary: 128256 rows padded to 129024" in out
    launch = out.splitlines()[-1]
    assert launch == f"  palladio serve --model {tmp_path} --context-length 4096 --tp-size 8"
    code, out, _ = run(f"--model-path={tmp_path}/config.json", "--topology", "v6e-16")
    *_, where, launch = out.splitlines()
    assert where == "Launch, on each of the 4 hosts:"
    assert launch == f"  palladio serve --model-path={tmp_path} --tp-size 16 --nnodes 4"
    code, _, error = run("--model-path", str(tmp_path), "--topology", "v6e-16", "--tp-size", "8")
    assert code == 2
    assert "--tp-size 8 leaves hosts of v6e-16 unused: use --tp-size 16 or a smaller slice" in error
    code, out, _ = run("--model-path", str(tmp_path), "--topology", "v6e-8", "--is-embedding")
    assert "tokens/s" in out
    assert "1 request:" not in out


def test_larger_slices_where_no_single_host_suffices(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 2**25}))  # 1.6 TB
    code, out, _ = run("--model-path", str(tmp_path))
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()}
    hosts = [SLICES[name].num_hosts for name in rows if name in SLICES]
    assert hosts == sorted(hosts, key=lambda count: count > 1)  # those of one host come first
    fitting = [name for name, line in rows.items() if name in SLICES and "no memory is left" not in line]
    assert fitting == ["v5e-256", "v6e-128", "v4-256", "v5p-64", "tpu7x-32"]  # the first of each chip that suffices
    assert "v5p-32" in rows
    assert "v5p-128" not in rows
    code, out, _ = run("--model-path", str(tmp_path), "--tp-size", "16", "--dp-size", "2")
    assert code == 2
    shown = {line.split()[0] for line in out.splitlines()} & SLICES.keys()
    assert {SLICES[name].num_devices for name in shown} == {32}  # every device of several hosts is used


def test_a_v4_is_planned_but_not_compiled_for(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("--model-path", str(tmp_path), "--topology", "v4-8")
    assert code == 0
    assert "on v4-8: 4 of 4 devices (TPU v4), 1 host(s)" in out
    for name in ("v4-8", "h100-1"):
        code, out, errors = run("--model-path", str(tmp_path), "--topology", name, "--compile")
        assert (code, out) == (2, "")
        known = "--compile knows TPUs except v4, and the H200; omit --compile for an estimate"
        assert errors == f"error: --topology {name}: {known}\n"


def test_a_model_that_fits_nowhere(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 8, "intermediate_size": 2**28}))
    code, _, errors = run("--model-path", str(tmp_path))
    assert (code, "does not fit on any of them with these flags" in errors) == (2, True)


def test_slices_that_flags_do_not_use_in_full_are_left_out(tmp_path: Path, run: Run) -> None:
    large = LLAMA | {"intermediate_size": 4_800_000}  # 236 GB
    (tmp_path / "config.json").write_text(json.dumps(large))
    code, out, errors = run("--model-path", str(tmp_path), "--tp-size", "16")
    assert (code, errors) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()[1:-1]}
    assert rows.keys() == {"v5e-16", "v6e-16", "v4-32", "v5p-32", "tpu7x-16"}
    assert "no memory is left" in rows["v5e-16"]
    assert "GiB" in rows["v5p-32"]

    code, out, errors = run("--model-path", str(tmp_path), "--dp-size", "3")
    rows = {line.split()[0]: line for line in out.splitlines()[1:-1]}
    gpus = {f"{chip.name}-{count}" for chip in CHIPS.values() if chip.platform == "gpu" for count in (4, 8)}
    assert rows.keys() == {"v5e-4", "v5e-8", "v6e-4", "v6e-8", "v4-8", "v5p-8", "tpu7x-8"} | gpus
    assert code == 2
    assert errors.endswith(
        "does not fit on any of them with these flags; others do not match the flags: --dp-size 3 leaves "
        "hosts of v4-16 unused: use a --dp-size that divides its 8 devices\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--ep-size", "3"], "--ep-size 3 must divide --tp-size 4, whose devices it splits: use --tp-size 3 or a mult"),
        (["--tp-size", "600"], "--tp-size 600 needs that many devices; tpu7x-512 has 512"),
        (["--tp-size", "24"], "--tp-size 24 leaves hosts of v5e-32 unused: use --tp-size 32 or a smaller slice"),
        (["--tp-size", "9", "--dp-size", "3"], "--dp-size 3 leaves hosts of v5e-32 unused: use a --dp-size"),
    ],
)
def test_flags_that_no_slice_suits(tmp_path: Path, run: Run, words: list[str], reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B))
    code, out, errors = run("--model-path", str(tmp_path), *words)
    assert (code, len(out.splitlines())) == (2, 2)  # the head and the foot of the table
    assert errors.startswith(f"error: no slice matches these flags: {reason}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "v6e-16", "--dp-size", "3"], "error: --dp-size 3 leaves hosts of v6e-16 unused: use"),
        (["--topology"], "error: --topology needs a value, such as v6e-8\n"),
        (["--topology", "v6e-8", "--tp-size", "16"], "error: --tp-size 16 needs that many devices; v6e-8 has 8\n"),
        (["--no-such-flag"], "error: unknown flag --no-such-flag"),
        (["--context-length", "100000"], "error: --context-length 100000 exceeds the model's max_position_embeddings"),
    ],
)
def test_wrong_flags(tmp_path: Path, run: Run, words: list[str], message: str) -> None:
    code, _, errors = run("--model-path", str(tmp_path), *words)
    assert code == 2
    assert errors.startswith(message)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    assert "--topology NAME" in capsys.readouterr().out
