"""serve(): a real process with real signals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from palladio.http.settings.http_config import HttpConfig
from palladio.http.server import serve
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine

engine = FakeEngine.create(Path(sys.argv[1]), reply="x" * 40)
engine.delay = float(sys.argv[2])
engine.load_seconds = float(sys.argv[3])
engine.start_error = ConfigError("no such model") if sys.argv[4] == "fail" else None
template = "chatml" if sys.argv[4] == "chatml" else None
engine.state = "starting"  # as a real one is from its first moment
engine.load_until = Path("loaded") if sys.argv[4] == "chatml" else None
sys.exit(serve(engine, HttpConfig(port=0, drain_timeout=20, chat_template=template)))
"""


class Process:
    """A serving process, and what it printed."""

    def __init__(self, tokenizer: Path, log: Path, delay: float, load_seconds: float, mode: str) -> None:
        command = [sys.executable, "-c", SCRIPT, str(tokenizer), str(delay), str(load_seconds), mode]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._log = log
        with log.open("w") as file:
            self.popen = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=file, stderr=file)
        self.url = "http://127.0.0.1:" + self.wait_for(r"running on http://127.0.0.1:(\d+)")

    def wait_for(self, pattern: str, seconds: float = 40) -> str:
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text())) is None:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)
        return found.group(found.re.groups)

    def text(self) -> str:
        return self._log.read_text()

    def num_waits(self) -> int:
        """How often its first thread has waited for something."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while httpx.get(self.url + "/v1/models").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[object]:
    started: list[Process] = []
    tokenizer = build_tiny_tokenizer(tmp_path / "tokenizer")

    def run(delay: float = 0.0, load_seconds: float = 0.0, mode: str = "") -> Process:
        started.append(Process(tokenizer, tmp_path / f"{len(started)}.log", delay, load_seconds, mode))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.popen.wait()


def test_it_loads_then_serves_and_logs_as_sglang_then_lets_streams_finish_and_refuses_new_work(
    launch, tmp_path: Path
) -> None:
    """The whole life of a server, whose template has no tools."""
    process = launch(delay=0.05, mode="chatml")
    assert httpx.get(process.url + "/health").status_code == 503
    (tmp_path / "loaded").touch()
    process.wait_ready()
    ready = time.time()
    line = r'\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO:     127\.0\.0\.1:\d+ - "GET /v1/models HTTP/1\.1" 200 OK'
    process.wait_for(f"({line})")
    process.wait_for("(tool calls are read as qwen25 .* --chat-template)")
    body = {"prompt": "a", "max_tokens": 30, "stream": True}
    with httpx.stream("POST", process.url + "/v1/completions", json=body, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        refused = httpx.post(process.url + "/v1/completions", json={"prompt": "b"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_not_ready")
        assert httpx.get(process.url + "/ready").json()["state"] == "draining"
        history = httpx.get(process.url + "/dashboard/data").json()["history"]
        assert history["time"][0] < ready, "it begins with the server, not with its first visitor"
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert process.popen.wait(20) == 0


@pytest.mark.slow  # above is a signal, and a stream that ends after it
def test_it_sleeps_while_nobody_asks_and_ctrl_c_drains_and_a_second_signal_ends_it_at_once(launch) -> None:
    process = launch(delay=1.0)
    process.wait_ready()
    before = process.num_waits()
    time.sleep(1.5)
    assert process.num_waits() - before < 10, "it wakes up too often: uvicorn's own loop would 15 times"
    body = {"prompt": "a", "max_tokens": 30, "stream": True}
    with httpx.stream("POST", process.url + "/v1/completions", json=body, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.popen.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert httpx.get(process.url + "/ready").json()["state"] == "draining"
        begun = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(20) == 0, process.text()
        assert time.monotonic() - begun < 4


@pytest.mark.slow  # tests/integration/test_bad_start.py has a real one
def test_an_engine_that_cannot_start_ends_the_process(launch) -> None:
    process = launch(load_seconds=0.3, mode="fail")
    assert process.popen.wait(20) != 0
    assert "no such model" in process.text()


def test_a_busy_port_is_a_config_error_that_names_it():
    from palladio.http.listening import listen
    from palladio.http.settings.http_config import HttpConfig
    from palladio.runtime.interface.errors import ConfigError

    with listen(HttpConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use"):
            listen(HttpConfig(port=port))


def test_a_second_server_is_told_of_the_port_not_of_its_folder(engine, tmp_path: Path) -> None:
    """Both take the folder of their port: the port is what to change."""
    from palladio.http.listening import listen
    from palladio.http.server import serve
    from palladio.http.settings.http_config import HttpConfig
    from palladio.http.storage.storage import Storage
    from palladio.runtime.interface.errors import ConfigError

    folder = tmp_path / "storage"
    storage = Storage(folder)
    try:
        with listen(HttpConfig(port=0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"^cannot listen on --host 127.0.0.1 --port {port}: Address already"):
                serve(engine, HttpConfig(port=port, file_storage_path=str(folder)))
        with pytest.raises(ConfigError, match="is in use by another server"):
            serve(engine, HttpConfig(port=0, file_storage_path=str(folder)))
    finally:
        storage.close()
