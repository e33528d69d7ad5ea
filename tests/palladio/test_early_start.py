"""The engine's process, which a server starts before its own imports: it serves, and none is left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palladio.early_start import begin_to_serve
from palladio.runtime.process.engine_child import EarlyEngine
from palladio.utils import _descendants

SERVE = [sys.executable, "-m", "palladio", "serve", "--port", "0"]
SLOW_IMPORT = "pydantic_core"  # of the front's first second, one that shows in the memory map


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(tmp_path: Path, *flags: str) -> tuple["subprocess.Popen[bytes]", int, bool]:
    """A server, its first child, and whether its own slow imports had begun by then."""
    environment = {"PALLADIO_CACHE_DIR": str(tmp_path), "PALLADIO_DATA_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([*SERVE, *flags], env=os.environ | environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (children := _descendants(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return process, children[0], SLOW_IMPORT in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


def test_it_starts_before_the_fronts_imports_and_ends_with_them(tmp_path: Path) -> None:
    process, child, was_late = started(tmp_path)
    assert not was_late
    assert "engine_main" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8")
    time.sleep(0.2)  # imports of both
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not is_there(child)


def test_a_wrong_flag_leaves_none(tmp_path: Path) -> None:
    process, child, _ = started(tmp_path, "--what")
    assert process.wait(60) == 2
    assert not is_there(child)


def test_help_needs_none() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert begin_to_serve(["--model-path", "m", "--help"]) is None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_one_that_is_taken_is_the_takers() -> None:
    early = EarlyEngine({})
    process = early.take()
    assert process is not None
    try:
        early.close()
        assert process.poll() is None
        assert early.take() is None
    finally:
        process.kill()
        process.communicate()


def test_one_that_has_ended_is_not_taken() -> None:
    early = EarlyEngine({})
    process = early._process
    assert process is not None
    process.kill()
    process.wait()
    assert early.take() is None
    process.communicate()


def test_without_processes_the_engines_start_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert EarlyEngine({}).take() is None
