"""Several front processes before one engine: one port, one view. Real processes; the engine is the fake one."""

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
    leader, other = (clients[pid] for pid in sorted(clients))  # the lowest number leads, and has the lowest pid
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
def streams(*clients, **fields):
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        running = [threads.submit(stream, client, rid=f"s{i}", **fields) for i, client in enumerate(clients)]
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


def test_requests_are_aborted_and_counted_wherever_they_run(both):
    first, second = both
    with httpx.Client(base_url=first.base_url) as third, streams(first, second) as running:
        wait_until(lambda: num_running(third) == 2)
        assert third.get("/load").json() == {"server_load": 2}
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


def test_a_killed_front_loses_its_own_connections_alone_and_is_replaced(server, both):
    """It leads, too: the other front takes over."""
    first, second = both
    before = counter(second, "sglang:num_requests_total")
    pid = min(server.front_pids())
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
