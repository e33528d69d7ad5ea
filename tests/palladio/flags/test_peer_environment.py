"""Variables that other servers' launch lines set: each has a verdict, and the start says so once."""

import json
import re
from pathlib import Path

import pytest

from palladio.flags.peer_environment import PeerVariables, load_peer_variables, read_peer_environment
from palladio.flags.server_args import own_flags, parse_server_args
from palladio.runtime.interface.errors import ConfigError, FlagErrors
from palladio.server.launch import read_command

ROOT = Path(__file__).resolve().parents[3]
PEERS = sorted((ROOT / "runtime/interface/flags/peers").glob("*.json"))
TABLE = PeerVariables(load_peer_variables())


def flags(environment: dict[str, str], *words: str) -> dict:
    variables = read_peer_environment(environment)
    return parse_server_args(["m", *words], variables.options).args.flags()


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.stem)
def test_every_variable_of_a_server_has_a_verdict(path: Path) -> None:
    names = json.loads(path.read_text("utf-8"))["environment"]
    assert len(names) > 50
    assert [name for name in names if TABLE.find(name) is None] == []


def test_rows_name_flags_that_are_there() -> None:
    rows = load_peer_variables()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        named = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", row.here)}
        assert named <= own_flags().keys(), row
        assert bool(row.here)


@pytest.mark.parametrize(
    ("environment", "name", "value"),
    [
        ({"JAX_COMPILATION_CACHE_DIR": "/tmp/jit"}, "compilation_cache_dir", "/tmp/jit"),
        ({"VLLM_XLA_CACHE_PATH": "gs://b/x"}, "compilation_cache_dir", "gs://b/x"),
        ({"VLLM_XLA_CACHE_PATH": "/a", "JAX_COMPILATION_CACHE_DIR": "/b"}, "compilation_cache_dir", "/b"),
        ({"VLLM_API_KEY": "s3cret"}, "api_key", "s3cret"),
        ({"SKIP_JAX_PRECOMPILE": "1"}, "compile", "lazy"),
        ({"SKIP_JAX_PRECOMPILE": "0"}, "compile", "auto"),
        ({"VLLM_BATCH_INVARIANT": "1"}, "deterministic", True),
        ({"VLLM_LOGGING_LEVEL": "WARN"}, "log_level", "warning"),
        ({"SGLANG_JAX_PROFILER_DIR": "/p"}, "profile_folder", "/p"),
        ({"VLLM_USE_MODELSCOPE": "False"}, "model_path", "m"),
    ],
)
def test_variables_that_stand_for_flags(environment: dict, name: str, value: object) -> None:
    assert flags(environment)[name] == value


def test_a_flag_wins_over_a_variable_and_a_file_too(tmp_path: Path) -> None:
    environment = {"JAX_COMPILATION_CACHE_DIR": "/a", "VLLM_API_KEY": "k1"}
    given = flags(environment, "--compilation-cache-dir", "/b", "--api-key", "k2")
    assert (given["compilation_cache_dir"], given["api_key"]) == ("/b", "k2")
    file = tmp_path / "a.yaml"
    file.write_text("compilation-cache-dir: /c\n")
    assert flags(environment, "--config", str(file))["compilation_cache_dir"] == "/c"


def test_each_is_said_once_and_no_value_is_shown() -> None:
    found = read_peer_environment(
        {
            "JAX_COMPILATION_CACHE_DIR": "/a",
            "VLLM_XLA_CACHE_PATH": "/b",
            "VLLM_API_KEY": "s3cret",
            "MODEL_IMPL_TYPE": "vllm",
            "TPU_BACKEND_TYPE": "jax",
            "VLLM_USE_V1": "1",
            "SGLANG_SOMETHING_NEW": "1",
            "PATH": "/bin",
            "JAX_PLATFORMS": "cpu",
            "VLLM_ROCM_USE_AITER": "",
        }
    )
    assert [note.split()[0] for note in found.notes] == [
        "JAX_COMPILATION_CACHE_DIR",
        "VLLM_XLA_CACHE_PATH",
        "VLLM_API_KEY",
    ]
    assert "gives way to JAX_COMPILATION_CACHE_DIR" in found.notes[1]
    assert len(found.warnings) == 2
    assert any("MODEL_IMPL_TYPE, TPU_BACKEND_TYPE, VLLM_USE_V1: no effect: " in line for line in found.warnings)
    assert "s3cret" not in str((found.notes, found.warnings))


def test_what_is_not_here_is_one_sentence_for_each_feature() -> None:
    environment = {"VLLM_USE_MODELSCOPE": "1", "SGLANG_USE_MODELSCOPE": "true", "VLLM_PLUGINS": "a"}
    with pytest.raises(FlagErrors) as error:
        read_command(["m"], environment)
    assert len(error.value.sentences) == 2
    with pytest.raises(ConfigError, match=r"^variable PREFILL_SLICES: prefill/decode disaggregation"):
        read_command(["m"], {"PREFILL_SLICES": "2x2"})
    with pytest.raises(FlagErrors) as error:
        read_command(["m", "--enable-lora", "--tool-call-parser", "beam"], environment)
    assert [word in str(error.value) for word in ("VLLM_PLUGINS", "--enable-lora", "Beam")] == [True] * 3
    assert len(error.value.sentences) == 4


def test_a_key_that_begins_with_a_dash_is_no_flag() -> None:
    variables = read_peer_environment({"VLLM_API_KEY": "-secret"})
    assert parse_server_args(["m"], variables.options).args.http.api_key == "-secret"
    assert not [line for line in variables.notes if "secret" in line]


def test_a_wrong_value_names_the_variable() -> None:
    variables = read_peer_environment({"VLLM_LOGGING_LEVEL": "loud"})
    with pytest.raises(ConfigError, match=r"--log-level must be one of.*variable VLLM_LOGGING_LEVEL"):
        parse_server_args(["m"], variables.options)
