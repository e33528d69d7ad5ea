"""Several front processes before one engine: one port, one view. Real processes; the engine is the fake one.

Slow: what needs further fronts, or another server.
"""

import concurrent.futures
import contextlib
import json
import os
import signal
import time

import httpx
import pytest

from tests.palladio.front_server import FrontServer

LONG = {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
BRIEF = {**LONG, "max_tokens": 3}
ROUTE = "/v1/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = FrontServer(tmp_path_factory.mktemp("fronts"), {"step_delay": 0.01})
    try:
        yield server
    finally:
        server.popen.kill() if server.popen.poll() is None else None


@pytest.fixture(scope="module")
def both(server):
    """The client of the front that leads, and one of the other."""
    clients = server.clients()
    leader = clients.pop(server.leader_pid())
    (other,) = clients.values()
    return leader, other


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
def streams(*clients, name="s", **fields):
    """Their ids are NAME0, NAME1, …"""
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        running = [threads.submit(stream, client, rid=f"{name}{i}", **fields) for i, client in enumerate(clients)]
        yield running


def num_running(client):
    return client.get("/v1/loads").json()["loads"][0]["num_running_reqs"]


def test_both_fronts_answer_and_tell_of_all_requests(both):
    for index, client in enumerate(both):
        before = counter(client, "sglang:num_requests_total")
        answer = client.post(ROUTE, json={**BRIEF, "rid": f"brief-{index}"})
        assert answer.status_code == 200
        assert [counter(each, "sglang:num_requests_total") for each in both] == [before + 1] * 2
        for each in both:
            assert each.get(f"/v1/requests/brief-{index}/explain").status_code == 200
    assert both[0].get("/v1/requests/nobody/explain").status_code == 404
    assert counter(both[0], "sglang:e2e_request_latency_seconds_count") == counter(
        both[1], "sglang:e2e_request_latency_seconds_count"
    )


def test_requests_are_aborted_counted_and_refused_twice_wherever_they_run(server, both):
    first, second = both
    retries = server.clients().values()
    with httpx.Client(base_url=first.base_url) as third, streams(first, second) as running:
        wait_until(lambda: num_running(third) == 2)
        assert third.get("/load").json() == {"server_load": 2}
        for again in (client.post(ROUTE, json={**BRIEF, "rid": "s0"}) for client in retries):
            assert (again.status_code, again.json()["error"]["param"]) == (400, "rid")
            assert again.json()["error"]["message"] == "a request with id 's0' is already running"
        assert third.post("/abort_request", json={"rid": "s0"}).json() == {"aborted": 1}
        assert third.post("/abort_request", json={"rid": "s1"}).json() == {"aborted": 1}
        assert third.post("/abort_request", json={"rid": "s1"}).json() == {"aborted": 0}
        for task in running:
            events, end = task.result(10)
            assert end == "data: [DONE]"
            assert '"finish_reason":"abort"' in "".join(events)


def test_what_one_front_orders_of_the_model_the_other_sees(both):
    first, second = both
    assert second.post("/release_memory_occupation", json={}).status_code == 200
    for client in both:
        assert client.get("/health").json()["state"] == "released"
        assert client.post(ROUTE, json=BRIEF).status_code == 503
    assert first.post("/resume_memory_occupation", json={}).status_code == 200
    assert [client.get("/health").status_code for client in both] == [200, 200]


def run_batch(first, second):
    """Made by one front, and watched by another one."""
    line = {"custom_id": "a", "method": "POST", "url": ROUTE, "body": BRIEF}
    file = second.post("/v1/files", files={"file": ("in.jsonl", json.dumps(line))}, data={"purpose": "batch"}).json()
    fields = {"input_file_id": file["id"], "endpoint": ROUTE, "completion_window": "24h"}
    batch = second.post("/v1/batches", json=fields).json()
    wait_until(lambda: "ed" in first.get(f"/v1/batches/{batch['id']}").json()["status"])
    done = second.get(f"/v1/batches/{batch['id']}").json()
    assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}, done
    assert '"custom_id":"a"' in first.get(f"/v1/files/{done['output_file_id']}/content").text


def test_batches_and_background_responses_are_everybodys_and_run_in_one_front(both):
    first, second = both
    run_batch(first, second)
    made = second.post("/v1/responses", json={"input": "abc", "background": True, "max_output_tokens": 50}).json()
    followed = second.get(f"/v1/responses/{made['id']}", params={"stream": True}).text
    assert "response.completed" in followed or "response.incomplete" in followed
    stored = [client.get(f"/v1/responses/{made['id']}").json() for client in both]
    assert stored[0] == stored[1]
    assert stored[0]["status"] in ("completed", "incomplete")
    refused = second.post("/v1/responses", json={"input": "abc", "background": True, "store": False})
    assert refused.status_code == 400
    assert "store: true" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_a_killed_front_loses_its_own_connections_alone_and_is_replaced(server, both):
    """It leads, too: the other front takes over."""
    first, second = both
    before = counter(second, "sglang:num_requests_total")
    pid = server.leader_pid()
    with httpx.Client(base_url=server.url) as third, streams(first, second) as running:
        wait_until(lambda: num_running(second_view(server)) == 2)
        os.kill(pid, signal.SIGKILL)
        _, lost = running[0].result(20)
        assert lost in ("RemoteProtocolError", "ReadError")
        wait_until(lambda: num_running(second_view(server)) <= 1)
        events, end = running[1].result(20)
        assert end == "data: [DONE]"
        assert len(events) > 150
        del third
    wait_until(lambda: len(server.front_pids()) == 2 and pid not in server.front_pids())
    server.wait_for("ended (killed by SIGKILL)")
    assert counter(second, "sglang:num_requests_total") >= before
    clients = server.clients().values()
    for client in clients:
        assert client.post(ROUTE, json=BRIEF).status_code == 200
    run_batch(*clients)


def second_view(server):
    return httpx.Client(base_url=server.url)


def test_sigterm_lets_the_streams_of_all_fronts_finish(server):
    clients = list(server.clients().values())
    with streams(*clients) as running:
        wait_until(lambda: num_running(second_view(server)) == len(clients))
        assert server.stop() == 0
        for task in running:
            events, end = task.result(20)
            assert end == "data: [DONE]"
            assert len(events) > 150
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_an_engine_that_crashes_is_restarted_for_all_fronts(tmp_path):
    server = FrontServer(tmp_path, {"step_delay": 0.02, "max_running": 1})
    try:
        first, second = server.clients().values()
        with streams(first) as served:
            wait_until(lambda: num_running(second) == 1)
            with streams(second, name="waiting", max_tokens=5) as waiting:
                wait_until(lambda: num_running(second_view(server)) == 2)
                os.kill(server.engine_pid(), signal.SIGKILL)
                events, _ = served[0].result(30)
                assert "engine" in events[-2], "it had output, and is told why it ends"
                events, end = waiting[0].result(30)
                assert end == "data: [DONE]"
                assert len(events) >= 5
        wait_until(lambda: all(client.get("/health").status_code == 200 for client in (first, second)))
        assert [client.post(ROUTE, json=BRIEF).status_code for client in (first, second)] == [200, 200]
        assert counter(first, "palladio:engine_restarts_total") == 1
        assert server.stop() == 0
    finally:
        server.popen.kill()


@pytest.mark.slow
def test_fronts_that_always_end_are_not_started_for_ever(tmp_path):
    server = FrontServer(tmp_path, {})
    try:
        deadline = time.monotonic() + 60
        while server.popen.poll() is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # one has ended, or all
                for pid in server.front_pids():
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        assert server.popen.returncode == 1
        assert "error: front processes ended 21 times within an hour" in server.log()
    finally:
        server.popen.kill()


@pytest.mark.slow
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
    server = FrontServer(tmp_path, knobs, *flags, wait=False)
    try:
        assert server.popen.wait(60) == code, server.log()
        (line,) = [line for line in server.log().splitlines() if line.startswith("error:")]
        assert message in line
    finally:
        server.popen.kill()


@pytest.mark.slow
def test_a_second_server_on_one_folder_is_refused_until_the_first_is_gone(tmp_path):
    folder = ("--file-storage-path", str(tmp_path / "storage"))
    places = [tmp_path / name for name in ("first", "second", "third")]
    for place in places:
        place.mkdir()
    servers = [FrontServer(places[0], {}, *folder)]
    try:
        (first, *_) = servers[0].clients().values()
        form = {"files": {"file": ("in.jsonl", b"{}")}, "data": {"purpose": "batch"}}
        kept = first.post("/v1/files", **form).raise_for_status().json()
        servers.append(FrontServer(places[1], {}, *folder, wait=False))
        assert servers[1].popen.wait(60) == 2, servers[1].log()
        (line,) = [line for line in servers[1].log().splitlines() if line.startswith("error:")]
        assert f"--file-storage-path {folder[1]} is in use by another server; give each server a folder" in line
        assert first.post(ROUTE, json=BRIEF).status_code == 200
        assert first.get(f"/v1/files/{kept['id']}").json() == kept
        assert first.post("/v1/files", **form).status_code == 200
        pids = servers[0].front_pids()
        servers[0].popen.kill()
        servers[0].popen.wait(10)
        wait_until(lambda: not [pid for pid in pids if os.path.exists(f"/proc/{pid}")])
        servers.append(FrontServer(places[2], {}, *folder))
        assert servers[2].client().get(f"/v1/files/{kept['id']}").json() == kept
    finally:
        for server in servers:
            server.popen.kill()


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(tmp_path):
    server = FrontServer(tmp_path, {"step_delay": 0.2})
    try:
        pids = [*server.front_pids(), server.engine_pid()]
        with streams(*server.clients().values()) as running:
            wait_until(lambda: num_running(second_view(server)) == 2)
            server.popen.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.popen.poll() is None, "streams get time to finish"
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 15
            for task in running:
                task.result(20)
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    finally:
        server.popen.kill()


@pytest.mark.slow
def test_all_end_with_the_parent(tmp_path):
    server = FrontServer(tmp_path, {})
    pids = [*server.front_pids(), server.engine_pid()]
    server.popen.kill()
    server.popen.wait(10)
    wait_until(lambda: not [pid for pid in pids if os.path.exists(f"/proc/{pid}")])
