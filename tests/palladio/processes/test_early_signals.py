"""SIGTERM and Ctrl-C at any moment of a start: the promised exit status, no traceback, and no child is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palladio.flags.default_model import default_model_path
from palladio.processes.child import run_module
from palladio.processes.early_signals import raise_on_terminate
from palladio.utils import _descendants

MODEL = str(default_model_path())
SERVE = ["palladio", "serve", "--port", "0"]
LAUNCH = ["palladio.launch_server", "--model-path", MODEL, "--port", "0"]
SLOW_IMPORT = "pydantic_core"  # of the first second's imports, one that shows in the memory map


@pytest.fixture
def start(tmp_path):
    """Starts `python -m …` with its output in one pipe, which every child holds open too."""
    processes = []

    def begin(words):
        environment = {"PALLADIO_CACHE_DIR": str(tmp_path), "PALLADIO_DATA_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(condition, process):
    deadline = time.monotonic() + 30
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def handles(process, number):
    """Whether the process has a handler for a signal, by what the kernel says."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1


def imports_jax(pid):
    return "/numpy/" in Path(f"/proc/{pid}/maps").read_text()


def end(process):
    """Exit status and output, once nobody holds the pipe any more."""
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(SERVE, signal.SIGTERM, id="serve-SIGTERM"),
        pytest.param(LAUNCH, signal.SIGINT, id="launch_server-SIGINT", marks=pytest.mark.slow),
        pytest.param(SERVE, signal.SIGINT, id="serve-SIGINT", marks=pytest.mark.slow),
        pytest.param(LAUNCH, signal.SIGTERM, id="launch_server-SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_signals_are_handled_before_the_slow_imports(start, words, number):
    process = start(words)
    wait_for(lambda: handles(process, signal.SIGTERM), process)
    assert SLOW_IMPORT not in Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(number)
    status, output = end(process)
    assert (status, "Traceback" in output) == (0, False), output


@pytest.mark.parametrize("delay", [0.4, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.15, 0.8, 1.3, 2.0))])
def test_the_server_ends_with_0_whenever_it_is_told(start, delay):
    process = start(SERVE)
    wait_for(lambda: handles(process, signal.SIGTERM), process)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    status, output = end(process)
    assert (status, "Traceback" in output, "error:" in output) == (0, False, False), output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_other_commands_end_as_quietly_with_the_signals_own_status(start, number, status):
    process = start(["palladio", "plan", "--model-path", MODEL])
    wait_for(lambda: handles(process, signal.SIGTERM), process)
    process.send_signal(number)
    assert end(process) == (status, "")


def test_ctrl_c_while_a_worker_imports_prints_no_traceback(start):
    process = start(["palladio", "plan", "--model-path", MODEL])
    wait_for(lambda: any(map(imports_jax, _descendants(process.pid))), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert end(process) == (130, "")


@pytest.mark.slow  # test_sigterm_while_a_worker_is_being_started_ends_it_too has one without a process of its own
def test_sigterm_to_a_command_ends_its_worker(start):
    process = start(["palladio", "compile", "--model-path", MODEL])
    wait_for(lambda: _descendants(process.pid), process)
    workers = _descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    status, output = end(process)
    assert (status, "Traceback" in output) == (143, False), output
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers)


def test_sigterm_while_a_worker_is_being_started_ends_it_too(monkeypatch):
    """In the constructor of Popen: the child runs, and its parent has nothing yet to end it by."""
    children = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            children.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    handler = signal.getsignal(signal.SIGTERM)
    raise_on_terminate()
    try:
        with pytest.raises(SystemExit, match="143"):
            run_module("timeit", "-n1", "import time; time.sleep(60)", environment=os.environ)
        assert children[0].returncode == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGTERM, handler)
        children[0].kill()
        children[0].wait()
