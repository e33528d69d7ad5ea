"""The commands, with the engine and the server replaced; and one real start of the process for what it prints."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palladio import __main__ as cli
from palladio import __version__
from palladio.flags.default_model import DEFAULT_MODEL_NAME, default_model_path
from palladio.flags.gpu_memory import GPU_MEMORY
from palladio.runtime.interface.errors import ConfigError, EngineDeadError
from palladio.server import launch as launch_server

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Launched:
    """What the launcher handed on."""

    config: object = None
    environment: object = None
    http: object = None
    observability: object = None
    status: int = 0
    error: Exception | None = None


@pytest.fixture
def launched(monkeypatch, tmp_path):
    seen = Launched()

    def transport(*, environment, early):
        assert early is None  # nothing has been started
        seen.environment = environment
        return "transport"

    class Engine:
        def __init__(self, config, transport):
            assert transport == "transport"
            seen.config = config

    def serve(engine, http, observability):
        assert isinstance(engine, Engine)
        seen.http, seen.observability = http, observability
        if seen.error is not None:
            raise seen.error
        return seen.status

    monkeypatch.setattr(launch_server, "ProcessTransport", transport)
    monkeypatch.setattr(launch_server, "AsyncEngine", Engine)
    monkeypatch.setattr(launch_server, "serve", serve)
    monkeypatch.setattr(launch_server, "configure_logging", lambda level, log_format: None)
    monkeypatch.setenv("PALLADIO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PALLADIO_DATA_DIR", str(tmp_path / "data"))
    return seen


def test_flags_reach_the_engine_and_the_server(launched, tmp_path):
    status = launch_server.main(
        ["--model-path", "m", "--port", "31000", "--page_size", "8", "--random-seed", "5", "--log-level", "warning"]
    )
    assert status == 0
    assert (launched.config.source.model_path, launched.config.cache.page_size) == ("m", 8)
    assert launched.config.execution.random_seed == 5
    assert launched.config.execution.compilation_cache_dir == str(tmp_path / "xla")
    assert (launched.http.port, launched.http.log_level) == (31000, "warning")


def test_an_unset_seed_is_drawn_and_told(launched, caplog):
    with caplog.at_level("INFO", logger="palladio"):
        launch_server.main(["--model-path", "m", "--enable-torch-compile"])
    seed = launched.config.execution.random_seed
    assert 0 <= seed < 2**30
    boot, warning = caplog.messages
    assert boot.startswith("server_args=ServerArgs(model_path='m', tokenizer_path='m', ")
    assert f"random_seed={seed}" in boot
    assert warning.startswith("--enable-torch-compile has no effect here: ")
    assert caplog.records[1].levelname == "WARNING"


def test_serve_without_a_model_takes_the_embedded_one_and_says_so(launched, capsys):
    assert cli.main(["serve", "--port", "31001"]) == 0
    assert launched.config.source.model_path == str(default_model_path())
    assert launched.http.served_model_name == (DEFAULT_MODEL_NAME,)
    told = capsys.readouterr().err
    assert "makes mistakes. For a published model: palladio serve smollm2 (SmolLM2-135M-Instruct, " in told
    assert cli.main(["serve", "--served-model-name", "*"]) == 0
    assert launched.http.served_model_name == ("*",)  # the user's, over the embedded model's
    assert cli.main(["serve", "--model", "m"]) == 0
    assert launched.config.source.model_path == "m"


def test_a_short_name_is_what_it_is_served_as(launched, monkeypatch, tmp_path, capsys):
    """It is looked for when the server starts, so a folder of that name is found first."""
    monkeypatch.chdir(tmp_path)
    for words in (["smollm2"], ["--model-path", "smollm2", "--download-dir", str(tmp_path)]):
        assert cli.main(["serve", *words]) == 0
        assert (launched.config.source.model_path, launched.http.served_model_name) == ("smollm2", None)
    assert launched.config.source.download_dir == str(tmp_path)
    assert "embedded" not in capsys.readouterr().err
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{")
    assert cli.main(["serve", "smollm2"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read smollm2/config.json ")


def test_launch_server_without_a_model_serves_what_serve_does(launched, capsys):
    assert launch_server.main(["--port", "31001"]) == 0
    assert launched.config.source.model_path == str(default_model_path())
    assert launched.http.served_model_name == (DEFAULT_MODEL_NAME,)
    assert "serving the embedded default model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["/nonexistent"], "error: --model-path /nonexistent: no such directory\n"),
        (["gs://bucket/model"], "error: --model-path gs://bucket/model is a URL: mount the bucket"),
        (["m", "--tokenizer-path", "./none"], "error: --tokenizer-path ./none: no such directory\n"),
        (["--no-such-flag"], "error: unknown flag --no-such-flag (`palladio serve --help` lists all)\n"),
    ],
)
def test_what_can_be_checked_is_checked_before_anything_else_is_said(launched, capsys, caplog, words, error):
    with caplog.at_level("INFO", logger="palladio"):
        assert cli.main(["serve", *words]) == 2
    assert capsys.readouterr().err.startswith(error)
    assert caplog.messages == []
    assert launched.config is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantization", "exl2"], "--quantization exl2 is not supported: int8, fp8, int4, w8a8"),
        (["--tp", "0"], "--tp-size must be at least 1"),
        (["--page-size", "0"], "--page-size must be at least 1"),
        (["--what"], "unknown flag --what"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(launched, capsys, words, message):
    assert launch_server.main(["--model-path", "m", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_what_ends_the_server_becomes_the_exit_code(launched, capsys):
    launched.status = 1
    assert launch_server.main(["--model-path", "m"]) == 1
    for error, status in ((EngineDeadError("gone"), 1), (ConfigError("bad"), 2), (KeyboardInterrupt(), 130)):
        launched.error = error
        assert launch_server.main(["--model-path", "m"]) == status
    assert capsys.readouterr().err.endswith("error: gone\nerror: bad\n")


def test_an_error_is_one_line_however_many_jax_has(launched, capsys):
    launched.error = EngineDeadError("jax says:\n  no device\n\n  found")
    assert launch_server.main(["--model-path", "m"]) == 1
    assert capsys.readouterr().err == "error: jax says: no device found\n"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"XLA_CLIENT_MEM_FRACTION": "1.0"}),
        ({"XLA_CLIENT_MEM_FRACTION": ""}, {"XLA_CLIENT_MEM_FRACTION": "1.0"}),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, {}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, {}),
    ],
)
def test_the_engine_may_use_the_whole_gpu_unless_the_user_says_less(launched, environment, expected):
    argv = ["--model-path", "m", "--port", "0"]
    assert launch_server.launch(argv, {"PALLADIO_CACHE_DIR": "/x"} | environment) == 0
    assert launched.environment == expected
    assert launched.config.execution.compilation_cache_dir == "/x/xla"


HOSTS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "10.0.0.1"}


@pytest.mark.parametrize(
    ("argv", "environment", "expected"),
    [
        ([], {}, 3),
        (["--max-engine-restarts", "5"], {}, 5),
        (["--nnodes", "1", "--max-engine-restarts", "5"], HOSTS, 5),
        (["--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.1:8478"], {}, 0),
        (["--max-engine-restarts", "5"], HOSTS, 0),
    ],
)
def test_an_engine_of_several_hosts_is_not_started_again(launched, argv, environment, expected):
    assert launch_server.launch(["--model-path", "m", "--port", "0", *argv], environment) == 0
    assert launched.config.survival.max_engine_restarts == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--port", "31000"], "data/storage/31000"),
        (["--port", "31000", "--file-storage-path", "mine"], "mine"),
        (["--port", "0"], None),
    ],
)
def test_where_files_and_batches_are_kept(launched, tmp_path, argv, expected):
    """Servers on one host do not share a folder, and one that is started again on its port finds its own."""
    assert launch_server.main(["--model-path", "m", *argv]) == 0
    wanted = str(tmp_path / expected) if expected and expected.startswith("data") else expected
    assert launched.http.file_storage_path == wanted


def test_a_server_that_can_keep_nothing_serves_all_the_same(launched, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PALLADIO_DATA_DIR", str(tmp_path / "file"))
    assert launch_server.main(["--model-path", "m"]) == 0
    assert launched.http.file_storage_path is None
    assert "set --file-storage-path" in caplog.text


def test_jax_reads_the_gpus_share_from_there(monkeypatch):
    xla_client = pytest.importorskip("jaxlib.xla_client")
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in GPU_MEMORY.items():
        monkeypatch.setenv(name, value)
    assert xla_client.generate_pjrt_gpu_plugin_options()["memory_fraction"] == 1.0


def test_version_help_and_unknown_commands(capsys):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    for words in ([], ["help"], ["--help"]):
        assert cli.main(words) == 0
        assert "serve " in capsys.readouterr().out
    assert cli.main(["dance"]) == 2
    assert "unknown command 'dance'" in capsys.readouterr().err


def test_the_processes_lines_look_like_sglangs(tmp_path):
    """A model that is not there: the boot line and the warning come out stamped, then one line, no traceback."""
    missing = "nobody/missing"
    command = [sys.executable, "-m", "palladio.launch_server", "--model-path", missing, "--port", "0"]
    result = subprocess.run(
        [*command, "--enable-p2p-check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PALLADIO_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    lines = result.stderr.splitlines()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
    assert re.match(stamp + r"server_args=ServerArgs\(model_path='", lines[0])
    assert re.match(stamp + "WARNING: --enable-p2p-check has no effect here: ", lines[1])
    assert re.match(stamp + r"No --api-key: anyone who can reach --host 127\.0\.0\.1 .*--allowed-hosts", lines[2])
    assert result.returncode != 0
    assert missing in "\n".join(lines[3:])
    assert "Traceback" not in result.stderr
