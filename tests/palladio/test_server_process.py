"""The server as its two processes; the engine is the fake one."""

import concurrent.futures
import contextlib
import os
import signal
import time

import httpx
import pytest

from tests.palladio.server_process import ServerProcess

LONG = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
BRIEF = {**LONG, "max_tokens": 3}
ROUTE = "/v1/completions"

pytestmark = pytest.mark.slow


def counter(client, name):
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name + "{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stream(client, **fields):
    """What came of a stream, and how it ended."""
    events = []
    try:
        with client.stream("POST", ROUTE, json={**LONG, "stream": True, **fields}) as response:
            events = [line for line in response.iter_lines() if line]
    except httpx.HTTPError as error:
        return events, type(error).__name__
    return events, events[-1]


@contextlib.contextmanager
def streaming(client, **fields):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        yield threads.submit(stream, client, **fields)


def num_running(client):
    return client.get("/v1/loads").json()["loads"][0]["num_running_reqs"]


def num_waiting(client):
    return client.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"]


def test_an_engine_that_crashes_is_restarted_and_the_log_has_no_traceback(tmp_path):
    server = ServerProcess(tmp_path, {"step_delay": 0.02, "max_running": 1})
    try:
        with server.client() as client, streaming(client, rid="served") as served:
            wait_until(lambda: num_running(client) == 1)
            with streaming(client, rid="waiting", max_tokens=5) as waiting:
                wait_until(lambda: num_running(client) + num_waiting(client) == 2)
                os.kill(server.engine_pid(), signal.SIGKILL)
                events, _ = served.result(30)
                assert "engine" in events[-2], "it had output, and is told why it ends"
                events, end = waiting.result(30)
                assert end == "data: [DONE]"
                assert len(events) >= 5
            wait_until(lambda: client.get("/health").status_code == 200)
            assert client.post(ROUTE, json=BRIEF).status_code == 200
            assert counter(client, "palladio:engine_restarts_total") == 1
        assert server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        server.popen.kill()


@pytest.mark.parametrize(
    ("knobs", "flags", "code", "message"),
    [
        ({"start_error": "config"}, (), 2, "--page-size 7 makes no sense to a fake"),
        ({"start_error": "crash"}, (), 1, "the engine could not start: RuntimeError: no device"),
        ({}, ("--api-key-file", "/nowhere/keys"), 2, "--api-key-file"),
        ({}, ("--chat-template", "/nowhere/template.jinja"), 2, "--chat-template"),
    ],
)
def test_a_failed_start_is_one_line_and_an_exit_code(tmp_path, knobs, flags, code, message):
    server = ServerProcess(tmp_path, knobs, *flags, wait=False)
    try:
        assert server.popen.wait(60) == code, server.log()
        (line,) = [line for line in server.log().splitlines() if line.startswith("error:")]
        assert message in line
    finally:
        server.popen.kill()


def test_a_second_server_on_one_folder_is_refused_until_the_first_is_gone(tmp_path):
    folder = ("--file-storage-path", str(tmp_path / "storage"))
    places = [tmp_path / name for name in ("first", "second", "third")]
    for place in places:
        place.mkdir()
    servers = [ServerProcess(places[0], {}, *folder)]
    try:
        first = servers[0].client()
        form = {"files": {"file": ("in.jsonl", b"{}")}, "data": {"purpose": "batch"}}
        kept = first.post("/v1/files", **form).raise_for_status().json()
        servers.append(ServerProcess(places[1], {}, *folder, wait=False))
        assert servers[1].popen.wait(60) == 2, servers[1].log()
        (line,) = [line for line in servers[1].log().splitlines() if line.startswith("error:")]
        assert f"--file-storage-path {folder[1]} is in use by another server; give each server a folder" in line
        assert first.post(ROUTE, json=BRIEF).status_code == 200
        assert first.get(f"/v1/files/{kept['id']}").json() == kept
        assert first.post("/v1/files", **form).status_code == 200
        servers[0].popen.kill()
        servers[0].popen.wait(10)
        servers.append(ServerProcess(places[2], {}, *folder))
        assert servers[2].client().get(f"/v1/files/{kept['id']}").json() == kept
    finally:
        for server in servers:
            server.popen.kill()


def test_a_second_signal_ends_both_processes_at_once(tmp_path):
    server = ServerProcess(tmp_path, {"step_delay": 0.2})
    try:
        engine = server.engine_pid()
        with server.client() as client, streaming(client) as running:
            wait_until(lambda: num_running(client) == 1)
            server.popen.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.popen.poll() is None, "streams get time to finish"
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 15
            running.result(20)
        wait_until(lambda: not os.path.exists(f"/proc/{engine}"))
    finally:
        server.popen.kill()
