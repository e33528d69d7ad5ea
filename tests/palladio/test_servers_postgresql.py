"""Two servers that share a PostgreSQL, which is away for a minute. Real processes; the engines are fakes."""

import collections
import concurrent.futures
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.palladio.server_process import ServerProcess
from tests.postgres_server import PostgresServer, missing

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LINES = 1000
LINE_ROUTE = "/v1/completions"
STEP = 0.02  # seconds
LEASE = 15.0  # seconds
OUTAGE = 60.0  # seconds
AT_ONCE = 20.0  # seconds, on a busy machine
PATIENCE = 120.0  # seconds
LINE_TOKENS = 3
BRIEF = {"prompt": "abc", "max_tokens": LINE_TOKENS, "temperature": 0}
SHORT: dict[str, Any] = {"input": "hi", "max_output_tokens": 3}
ENDS_AWAY, OUTLASTS = 500, 4500  # tokens: of a response that ends while the database is away, and of one that does not
CONTEXT = 8192


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    server = PostgresServer.create(is_durable=True)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def servers(tmp_path: Path, postgres: PostgresServer) -> Iterator[list[ServerProcess]]:
    flags = ["--database-url", postgres.url(), "--database-lease", str(LEASE)]
    flags += ["--context-length", str(CONTEXT), "--max-total-tokens", str(4 * CONTEXT)]
    flags += ["--file-storage-path", str(tmp_path / "storage")]
    made = list[ServerProcess]()
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            made.append(ServerProcess(tmp_path / name, {"step_delay": STEP, "max_running": 8}, *flags))
        yield made
    finally:
        for server in made:
            if server.popen.poll() is None:
                server.popen.kill()


def until(condition: Callable[[], bool], seconds: float, server: ServerProcess) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def ask(server: ServerProcess, path: str) -> dict[str, Any]:
    """Once the database answers."""
    deadline = time.monotonic() + PATIENCE
    while (answer := httpx.get(f"{server.url}{path}", timeout=PATIENCE)).status_code != 200:
        assert (answer.status_code, time.monotonic() < deadline) == (503, True), answer.text
        time.sleep(0.05)
    found: dict[str, Any] = answer.json()
    return found


def num_done(server: ServerProcess, batch_id: str) -> int:
    counts: dict[str, int] = ask(server, f"/v1/batches/{batch_id}")["request_counts"]
    return counts["completed"] + counts["failed"]


def begin_batch(server: ServerProcess) -> str:
    lines = [{"custom_id": str(number), "method": "POST", "url": LINE_ROUTE, "body": BRIEF} for number in range(LINES)]
    with server.client() as client:
        form = {"files": {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)))}, "data": {"purpose": "batch"}}
        file = client.post("/v1/files", **form).json()
        fields = {"input_file_id": file["id"], "endpoint": LINE_ROUTE, "completion_window": "24h"}
        return str(client.post("/v1/batches", json=fields).json()["id"])


def begin_response(server: ServerProcess, num_tokens: int) -> str:
    body = {"input": "hi", "background": True, "max_output_tokens": num_tokens}
    answer = httpx.post(f"{server.url}/v1/responses", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def follow(server: ServerProcess, num_tokens: int) -> tuple[int, str]:
    """The tokens and the last line of a stream that stores nothing."""
    body = {**BRIEF, "max_tokens": num_tokens, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{server.url}{LINE_ROUTE}", json=body, timeout=PATIENCE) as response:
        lines = [line for line in response.iter_lines() if line]
    return json.loads(lines[-2].removeprefix("data: "))["usage"]["completion_tokens"], lines[-1]


def check_outage(server: ServerProcess, response_id: str) -> None:
    """What stores nothing is answered, the rest is refused."""
    with server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post(LINE_ROUTE, json=BRIEF).status_code == 200
        assert client.post("/v1/responses", json={**SHORT, "store": False}).status_code == 200
        refused = [client.get("/v1/batches"), client.get("/v1/files")]
        bodies: list[dict[str, Any]] = [{}, {"background": True}, {"previous_response_id": response_id}]
        refused += [client.post("/v1/responses", json=SHORT | more) for more in bodies]
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")


def check_batch(servers: list[ServerProcess], batch_id: str) -> None:
    for server in servers:
        until(lambda server=server: ask(server, f"/v1/batches/{batch_id}")["status"] == "completed", PATIENCE, server)
        batch = ask(server, f"/v1/batches/{batch_id}")
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert batch["usage"]["output_tokens"] == LINES * LINE_TOKENS, "a line counts twice"
        content = httpx.get(f"{server.url}/v1/files/{batch['output_file_id']}/content", timeout=PATIENCE).text
        seen = collections.Counter(json.loads(line)["custom_id"] for line in content.splitlines())
        assert seen == {str(number): 1 for number in range(LINES)}


def test_a_minute_without_the_database_loses_no_line_and_no_response(
    servers: list[ServerProcess], postgres: PostgresServer
) -> None:
    """It is longer than four leases: each server finds the other's run out, and must not take what it has."""
    first, second = servers
    stored = httpx.post(f"{first.url}/v1/responses", json=SHORT, timeout=PATIENCE).json()["id"]
    responses = {begin_response(server, size): size for server in servers for size in (ENDS_AWAY, OUTLASTS)}
    batch_id = begin_batch(first)
    until(lambda: num_done(second, batch_id) >= 100, PATIENCE, second)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        followed = [threads.submit(follow, server, OUTLASTS) for server in servers]
        before = num_done(second, batch_id)
        postgres.stop()
        begun = time.monotonic()
        while time.monotonic() - begun < OUTAGE:
            for server in servers:
                check_outage(server, stored)
            time.sleep(5)
        postgres.start()
        until(lambda: num_done(second, batch_id) > before, AT_ONCE, second)
        check_batch(servers, batch_id)
        for response_id, size in responses.items():
            for server in servers:
                path = f"/v1/responses/{response_id}"
                until(lambda: ask(server, path)["status"] not in ("queued", "in_progress"), PATIENCE, server)  # noqa: B023
                found = ask(server, path)
                assert found["status"] == "incomplete", (found["error"], server.log())
                assert found["usage"]["output_tokens"] == size
        assert {one.result() for one in followed} == {(OUTLASTS, "data: [DONE]")}
    for server in servers:
        assert server.stop() == 0
        assert "unfinished responses again" not in server.log(), "it was made twice"
        assert "Traceback" not in server.log()
        assert server.log().count("Cannot look for") < 5, "the log says it again and again"
