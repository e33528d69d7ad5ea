"""`palladio compile`: what it leaves behind, and how it fails."""

import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from palladio.__main__ import main
from palladio.processes import child
from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.interface.config.config import EngineConfig
from palladio.server import launch as launch_server
from tests import compile_cache
from tests.runtime.tiny_engine import build_tiny_model_dir

ROOT = Path(__file__).resolve().parents[4]
LIMITS = ["--page-size=4", "--max-total-tokens=256", "--max-running-requests=1", "--chunked-prefill-size=16"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny_model_dir(tmp_path_factory.mktemp("model"))


def run(model, *flags):
    command = [sys.executable, "-m", "palladio", "compile", "--model-path", str(model), *LIMITS, *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def in_this_process(monkeypatch):
    """The command without a process of its own."""

    def run_here(command, environment, words):
        config = msgspec.json.decode(words, type=EngineConfig)
        return launch_server.run_worker(lambda: compile_ahead(config))

    monkeypatch.setattr(child, "run_process", run_here)
    monkeypatch.setattr(launch_server, "configure_logging", lambda level, log_format: None)
    with compile_cache.options_kept():
        yield


@pytest.mark.usefixtures("in_this_process")
def test_programs_are_left_in_the_cache_and_found_there(model, tmp_path, caplog):
    words = ["compile", "--model-path", str(model), *LIMITS, "--compilation-cache-dir", str(tmp_path / "cache")]
    with caplog.at_level(logging.INFO):
        assert main(words) == 0
        assert "Programs, compiled: 11" in caplog.text
        assert "Memory plan" in caplog.text
        assert "Load weight" not in caplog.text  # there are none in this directory
        caplog.clear()
        assert main(words) == 0
        assert "Programs, cache hit: 11" in caplog.text
        assert "Programs, compiled" not in caplog.text


@pytest.mark.slow
def test_programs_are_exported(model, tmp_path):
    answer = run(model, "--compiled-dir", str(tmp_path / "programs"))
    assert answer.returncode == 0, answer.stderr
    assert "Exported 9 programs" in answer.stderr
    assert len(list((tmp_path / "programs").iterdir())) == 9


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_one_line(model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    answer = run(model, "--compiled-dir", str(tmp_path / "file"))
    assert answer.returncode == 2
    (line,) = [line for line in answer.stderr.splitlines() if line.startswith("error:")]
    assert "--compiled-dir" in line
    assert "Compiling" not in answer.stderr  # it is said before the minutes that this may take
    assert "Traceback" not in answer.stderr


@pytest.mark.slow  # tests/palladio/test_first_checks.py has wrong flags
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--compile", "sometimes"], "sometimes"),
        (["--max-total-tokens", "999999999999"], "would fit"),
        (["--no-such-flag"], "unknown flag"),
    ],
)
def test_a_wrong_flag_is_exit_code_2(model, flags, message):
    answer = run(model, *flags)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--nnodes=2", "--node-rank=0", "--dist-init-addr=127.0.0.1:8478"], {}),
        ([], {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "10.0.0.1"}),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_several_hosts_are_refused(model, monkeypatch, capsys, flags, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["compile", "--model-path", str(model), *LIMITS, *flags]) == 2
    assert capsys.readouterr().err.startswith("error: `palladio compile` runs on one host; omit --nnodes")
