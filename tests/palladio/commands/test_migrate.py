"""`palladio migrate`: another server's launch command as ours, with reasons."""

import shlex

import pytest

from palladio.commands.migrate import Launch, migrate, migrated, read_launch
from palladio.flags.server_args import parse_server_args
from palladio.runtime.interface.errors import ConfigError


def run(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = migrate([text], {})
    return code, capsys.readouterr().out.splitlines()


def test_a_command_of_sglang_jax(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line, *reasons) = run(
        "JAX_COMPILATION_CACHE_DIR=/tmp/jit MODEL_IMPL_TYPE=x python3 -u -m sgl_jax.launch_server --model-path a/b "
        "--tp-size 32 --dp-size=4 --moe-backend fused --dp-schedule-policy cache_aware --skip-server-warmup",
        capsys,
    )
    assert (code, line) == (
        0,
        "JAX_COMPILATION_CACHE_DIR=/tmp/jit palladio serve a/b --tp-size 32 --dp-size 4 --load-balance-method prefix "
        "--enable-dp-attention",
    )
    assert all(reason.startswith("# ") for reason in reasons)
    for changed in (
        "MODEL_IMPL_TYPE",
        "--moe-backend",
        "--dp-schedule-policy",
        "--skip-server-warmup",
        "--enable-dp-att",
    ):
        assert sum(changed in reason.split(":")[0] for reason in reasons) >= 1, changed
    assert not any("--tp-size 32" in reason for reason in reasons), "what stays needs no reason"


def test_a_command_of_vllm_with_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line, *reasons) = run("nohup vllm serve a/b -tp 2 --max-model-len 8k --enable-lora > log 2>&1 &", capsys)
    assert code == 1, "LoRA is not here"
    assert line == "palladio serve a/b --tp-size 2 --context-length 8000 --host 0.0.0.0 --port 8000"
    assert [reason for reason in reasons if "LoRA" in reason] == [reasons[-1]]
    assert reasons[-1].startswith("# not here: --enable-lora")


def test_values_stay_one_word() -> None:
    launch = read_launch("vllm serve m --override-generation-config '{\"top_k\": 3}' --port 1 --host h")
    words = shlex.split(migrated(launch).line)
    assert words[-6:] == ["--preferred-sampling-params", '{"top_k": 3}', "--port", "1", "--host", "h"]
    assert parse_server_args(words[2:]).args.http.preferred_defaults == {"top_k": 3}


def test_a_command_in_a_container_and_one_over_several_lines() -> None:
    launch = read_launch(
        "docker run --gpus all -e VLLM_API_KEY=k -p 8000:8000 image python3 -m sglang.launch_server \\\n"
        "  --model a \\\n  --tp 2"
    )
    assert launch == Launch("SGLang", {"VLLM_API_KEY": "k"}, ["--model", "a", "--tp", "2"])


def test_redirections_end_a_command_and_variables_stand_in_front_of_it() -> None:
    launch = read_launch("docker run --env=VLLM_API_KEY=k -eHF_TOKEN=t image vllm serve m --port 1 2>/tmp/log >out")
    assert launch == Launch("vLLM", {"VLLM_API_KEY": "k", "HF_TOKEN": "t"}, ["m", "--port", "1"])


def test_variables_of_the_shell() -> None:
    found = migrated(read_launch("sglang serve --model-path $MODEL --host ${HOST} --port $PORT"))
    assert found.line == 'palladio serve "$MODEL" --host "${HOST}"'
    assert [sentence.partition(" ")[0] for sentence in found.missing] == ["--port", "values"]


def test_a_number_written_another_way_has_not_changed() -> None:
    found = migrated(read_launch("sglang serve --model-path m --watchdog-timeout 300 --mem-fraction-static .9"))
    assert found.reasons == []


def test_what_a_file_says_stays_in_the_file(tmp_path) -> None:
    found = migrated(Launch("vLLM", {}, ["--config", "serve.yaml", "--seed", "3"]))
    assert found.line == "palladio serve --random-seed 3 --config serve.yaml"
    assert [reason for reason in found.reasons if reason.startswith(("--host 0.0.0.0", "--port 8000"))]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--tool-call-parser beam", "--tool-call-parser"),
        ('--speculative-config \'{"method":"eagle3"}\'', "draft models"),
        ("--quantization bitsandbytes", "--quantization"),
        ("--port 99999", "--port"),
        ("--max-num-seqs 0", "--max-num-seqs"),
        ("--hf-overrides '{'", "--hf-overrides"),
    ],
)
def test_what_serve_refuses_is_missing(flags: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(f"vllm serve m --enable-lora {flags}", capsys)
    missing = [line for line in lines if line.startswith("# not here: ")]
    assert code == 1
    assert [part in line for part, line in zip(("LoRA", word), missing, strict=True)] == [True, True], lines
    assert run(f"vllm serve m {flags}", capsys)[0] == 1


def test_a_variable_that_serve_refuses_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run("VLLM_LOGGING_LEVEL=loud vllm serve m", capsys)
    assert code == 1
    assert "variable VLLM_LOGGING_LEVEL" in lines[-1]


def test_a_command_without_a_model_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line, *reasons) = run("python -m sglang.launch_server --tp 2", capsys)
    assert (code, line) == (0, "palladio serve --tp-size 2")
    assert any("model" in reason for reason in reasons)


def test_attention_shared_by_ranks_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = "python -m sgl_jax.launch_server --model-path m --tp-size 4 --dp-size 2 --enable-dp-attention"
    assert run(text, capsys)[1][0] == "palladio serve m --tp-size 4 --dp-size 2 --enable-dp-attention"


@pytest.mark.parametrize(
    "text",
    [
        "ls -l",
        "python -m http.server",
        "vllm bench",
        "python -m sglang.launch_server 'a",
        "python3 -m MaxText.maxengine_server MaxText/configs/base.yml max_target_length=2048 ici_tensor_parallelism=4",
    ],
)
def test_what_is_no_launch_command(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate([text], {}) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(ConfigError):
        read_launch(text)
