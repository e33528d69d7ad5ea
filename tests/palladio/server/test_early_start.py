"""The engine's process, which a server starts before its own imports: it serves, and none is left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from palladio.runtime.process.engine_child import EarlyEngine
from palladio.server.early_start import begin_to_serve
from palladio.utils import _descendants

SERVE = [sys.executable, "-m", "palladio", "serve", "--port", "0"]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_engine(pid: int) -> bool:
    """Before it executes its program, a child has its parent's command line."""
    try:
        return "engine_main" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return False


class Server:
    """One that has just started, and its first child.

    Args:
        modules: a folder of modules that hide others from it; None: there is none.
    """

    def __init__(self, tmp_path: Path, *flags: str, modules: Path | None = None) -> None:
        environment = {"PALLADIO_CACHE_DIR": str(tmp_path), "PALLADIO_DATA_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
        if modules is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen([*SERVE, *flags], env=os.environ | environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (children := [pid for pid in _descendants(self.process.pid) if is_engine(pid)]):
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        self.child = children[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_it_starts_before_the_fronts_imports_and_ends_with_them(tmp_path: Path) -> None:
    """Of a front that never gets to the end of an import."""
    module = tmp_path / "modules" / "fastapi" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text("import time; time.sleep(100)")
    with Server(tmp_path, modules=module.parents[1]) as server:
        time.sleep(0.3)  # Python's own start in the child
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert not is_there(server.child)


def test_a_wrong_flag_leaves_none(tmp_path: Path) -> None:
    with Server(tmp_path, "--what") as server:
        assert server.process.wait(60) == 2
        assert not is_there(server.child)


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
