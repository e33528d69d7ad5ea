"""Several front processes that share a PostgreSQL with other servers. Real processes; the engine is the fake one."""

import collections
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.palladio.front_server import FrontServer
from tests.postgres_server import PostgresServer, missing

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LINES = 1000
ROUTE = "/v1/completions"
PATIENCE = 120  # seconds
LEASE = 600  # seconds: an heir that waited for its end would not end here


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FrontServer]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        postgres = PostgresServer.create()
        stack.callback(postgres.remove)
        postgres.start()
        flags = ["--database-url", postgres.url(), "--database-lease", str(LEASE)]
        flags += ["--file-storage-path", str(tmp_path / "storage")]
        server = FrontServer(tmp_path, {"step_delay": 0.02, "max_running": 8}, *flags)
        stack.callback(lambda: server.popen.kill() if server.popen.poll() is None else None)
        yield server


def ask(server: FrontServer, path: str) -> httpx.Response:
    """From any front that answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"{server.url}{path}", timeout=20)
            if answer.status_code == 200:
                return answer
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def num_done(server: FrontServer, batch_id: str) -> int:
    counts: dict[str, int] = ask(server, f"/v1/batches/{batch_id}").json()["request_counts"]
    return counts["completed"] + counts["failed"]


def wait_for_both(server: FrontServer) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(server.front_pids()) < 2:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.1)
    for client in server.clients(PATIENCE).values():
        client.close()


def begin_batch(server: FrontServer) -> str:
    body = {"prompt": "abc", "max_tokens": 3, "temperature": 0}
    lines = [{"custom_id": str(number), "method": "POST", "url": ROUTE, "body": body} for number in range(LINES)]
    content = "\n".join(map(json.dumps, lines))
    with server.client() as client:
        form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
        file = client.post("/v1/files", **form).json()
        fields = {"input_file_id": file["id"], "endpoint": ROUTE, "completion_window": "24h"}
        return str(client.post("/v1/batches", json=fields).json()["id"])


def test_an_heir_goes_on_within_seconds_and_no_line_is_lost_or_answered_twice(server: FrontServer) -> None:
    waits, batches = [], []
    for _ in range(2):  # a batch for each kill: one would have ended before a new front is there, on a busy machine
        batches.append(begin_batch(server))
        while num_done(server, batches[-1]) < 100:
            time.sleep(0.05)
        os.kill(server.leader_pid(), signal.SIGKILL)
        begun = time.monotonic()
        server.wait_for("ended (killed by SIGKILL)", len(waits) + 1)
        before = num_done(server, batches[-1])
        while num_done(server, batches[-1]) <= before:
            time.sleep(0.02)
        waits.append(round(time.monotonic() - begun, 2))
        wait_for_both(server)
    print("seconds until the heir has answered lines:", waits)
    assert max(waits) < 30
    for batch_id in batches:
        deadline = time.monotonic() + PATIENCE
        while (batch := ask(server, f"/v1/batches/{batch_id}").json())["status"] != "completed":
            assert time.monotonic() < deadline, batch
            time.sleep(0.2)
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        found = ask(server, f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
        seen = collections.Counter(json.loads(line)["custom_id"] for line in found)
        assert seen == {str(number): 1 for number in range(LINES)}
    assert server.stop() == 0
    assert "Traceback" not in server.log()
