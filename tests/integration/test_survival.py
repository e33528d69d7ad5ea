"""The engine dies or hangs under a real server; the server is told to end, or dies."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.serving import (
    COMPLETIONS,
    GENERATE,
    MAX_RUNNING,
    Server,
    build_checkpoint,
    encoded_rows,
    error_of,
)

QUEUED, NUM_TEXTS = 6, 3  # of those that wait, some have prompts of embeddings
LAST_SAMPLING = {"sampling_params": {"max_new_tokens": 12, "temperature": 1.0, "seed": QUEUED - 1, "ignore_eos": True}}
NUM_TOKENS = 800  # of a stream: it is not over before the test has done its worst
ROOMY = "--page-size 64 --max-total-tokens 10240 --compile lazy"  # most programs are never needed here
TO_ARRIVE = 0.6  # seconds for requests to reach a server whose engine is stopped
LONG = {"prompt": "Hello", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like the other tests', with room for long streams."""
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), max_position_embeddings=NUM_TOKENS + 256)


def wait_gone(pids: list[int], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


class Streams:
    """Streams of long completions, read in threads, all of which have begun. The engine is stopped until it has all of
    the requests, so that they begin together.

    Attributes:
        lines: of each, as they come.
    """

    def __init__(self, server: Server, count: int = MAX_RUNNING) -> None:
        self._server = server
        self.lines: list[list[str]] = [[] for _ in range(count)]
        self._threads = [threading.Thread(target=self._read, args=(lines,), daemon=True) for lines in self.lines]
        pid = stop_engine(server)
        for thread in self._threads:
            thread.start()
        time.sleep(TO_ARRIVE)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while not all(self.lines):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def join(self) -> list[list[str]]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.lines

    def _read(self, lines: list[str]) -> None:
        with (
            contextlib.suppress(httpx.TransportError),  # the server died
            self._server.http.stream("POST", COMPLETIONS, json=LONG) as stream,  # a client each takes long to make
        ):
            lines.extend(line for line in stream.iter_lines() if line)


@contextlib.contextmanager
def queued(
    server: Server, count: int = QUEUED, rows: dict[str, object] | None = None
) -> Iterator[list[concurrent.futures.Future[list[int]]]]:
    """Seeded requests that wait, in threads: their tokens. Args: rows: the prompt of those behind the first ones."""

    def one(number: int) -> list[int]:
        sampling = {"max_new_tokens": 12, "temperature": 1.0, "seed": number, "ignore_eos": True}
        prompt = {"text": f"Number {number}"} if number < NUM_TEXTS else {"input_embeds": rows}
        body = {**prompt, "sampling_params": sampling, "rid": f"queued-{number}"}
        answer = httpx.post(server.url + GENERATE, json=body, timeout=100)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["output_ids"]
        return ids

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        yield [pool.submit(one, number) for number in range(count)]


def stop_engine(server: Server) -> int:
    """Keeps the engine from getting further; returns its pid."""
    pid = server.engine_pid()
    os.kill(pid, signal.SIGSTOP)
    return pid


def wait_healthy(server: Server, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while server.http.get("/health").status_code != 200:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


@pytest.mark.slow  # below is a shorter one; test_restarts.py, test_crash_dump.py and test_replay.py have its parts
def test_the_engine_is_killed_and_then_the_server(launch, tmp_path, checkpoint, monkeypatch):
    """Streams that had begun end with an error; what waited is answered as if nothing had happened; a dump is left,
    and its replay gives the same tokens. The next engine goes with its server, and frees the device."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = launch(f"{ROOMY} --crash-dump-folder {tmp_path / 'dumps'} --enable-input-embeds")
    rows = encoded_rows(checkpoint, list(range(5, 100)))
    with queued(server, rows=rows) as tasks:
        undisturbed = [task.result() for task in tasks]
    with server.http.stream("POST", GENERATE, json={"input_ids": list(range(5, 100)), **LAST_SAMPLING}) as answer:
        assert json.loads(answer.read())["output_ids"] == undisturbed[-1], "as the ids whose embeddings these are"
    streams = Streams(server)
    pid = stop_engine(server)
    with queued(server, rows=rows) as tasks:
        time.sleep(TO_ARRIVE)
        assert len(list(tmp_path.glob("palladio-media-*/tmp*"))) == 1, "equal prompts have one file"
        os.kill(pid, signal.SIGKILL)
        for lines in streams.join():
            assert '"code":"engine_dead"' in lines[-2], lines[-2:]
            assert "SIGKILL" in lines[-2]
        health = server.http.get("/health")
        assert (health.status_code, health.json()["state"]) == (503, "restarting")
        assert "SIGKILL" in health.json()["failure"]
        refused = server.post(COMPLETIONS, {"prompt": "Hello"})
        assert error_of(refused, 503)["code"] == "engine_not_ready"
        assert int(refused.headers["Retry-After"]) > 0
        assert [task.result() for task in tasks] == undisturbed
    wait_healthy(server)
    assert server.engine_pid() != pid
    server.check_clean()
    assert list(tmp_path.glob("palladio-media-*/tmp*")) == []
    assert re.search(rf"{MAX_RUNNING} requests with output were aborted, {QUEUED} wait", server.log())
    (dump,) = (tmp_path / "dumps").glob("crash-*.json")
    command = [sys.executable, "-m", "palladio", "replay", str(dump)]
    replay = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert f"not replayed: {2 * (QUEUED - NUM_TEXTS)} requests whose prompts have parts" in replay.stdout
    count = MAX_RUNNING + 2 * NUM_TEXTS + 1
    assert f"replaying {count} requests" in replay.stdout
    assert f"{count} equal, 0 different; {MAX_RUNNING + NUM_TEXTS} were unfinished" in replay.stdout
    pid, streams = server.engine_pid(), Streams(server, 1)
    server.process.kill()
    wait_gone([pid], 5.0)
    streams.join()


@pytest.mark.slow
def test_sigterm_while_the_engine_is_restarted(launch):
    """What waits is answered; then both processes end."""
    server = launch(f"{ROOMY} --drain-timeout 100")
    streams = Streams(server)
    pid = stop_engine(server)
    with queued(server) as tasks:
        time.sleep(TO_ARRIVE)
        os.kill(pid, signal.SIGKILL)
        streams.join()
        server.process.send_signal(signal.SIGTERM)
        while server.http.get("/health").json()["state"] != "draining":
            time.sleep(0.01)
        answer = error_of(server.post(COMPLETIONS, {"prompt": "Hello"}), 503)
        assert "shutting down" in str(answer["message"])
        assert all(len(task.result()) == 12 for task in tasks)
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_a_second_sigterm_is_immediate(launch):
    server = launch(ROOMY)
    pid = server.engine_pid()
    streams = Streams(server)
    server.process.send_signal(signal.SIGTERM)
    while server.http.get("/health").json()["state"] != "draining":
        time.sleep(0.01)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    assert time.monotonic() - begun < 5
    wait_gone([pid], 1.0)
    for lines in streams.join():
        assert '"finish_reason":"abort"' in lines[-1] or '"finish_reason":"abort"' in lines[-2]
    assert "Traceback" not in server.log()


@pytest.mark.slow  # tests/http/files/test_storage_failures.py has full disks
def test_a_full_disk_does_no_harm(launch, tmp_path):
    """The dumps' folder is gone when the engine is killed; the server says so and goes on. The next engine goes with
    its server."""
    folder = tmp_path / "dumps"
    server = launch(f"{ROOMY} --crash-dump-folder {folder}")
    folder.rmdir()
    folder.touch()
    streams = Streams(server, 1)
    os.kill(server.engine_pid(), signal.SIGKILL)
    (lines,) = streams.join()
    assert '"code":"engine_dead"' in lines[-2], lines[-2:]
    wait_healthy(server)
    assert server.post(GENERATE, {"text": "Hello", "sampling_params": {"max_new_tokens": 3}}).status_code == 200
    assert "Cannot write the crash dump" in server.log()
    pid = server.engine_pid()
    server.process.kill()
    wait_gone([pid], 5.0)
