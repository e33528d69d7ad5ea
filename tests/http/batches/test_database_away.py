"""A PostgreSQL that is away for a while: who notices, and that all goes on after that."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.records import retries
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl, results, submit, wait_for
from tests.http.conftest import running_server, wait_until
from tests.postgres_server import PostgresServer, missing

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LINES = 300
PATIENCE = 120  # seconds
AT_ONCE = 20  # seconds, on a busy machine; the pauses of a batch grow to 60
STORED = 77  # tokens, of responses that would be stored


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """One that the test may stop."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    server = PostgresServer.create()
    server.start()
    yield server
    server.remove()


OUTAGES = [1.0, pytest.param(60.0, id="a minute")]  # seconds; the second is what operators are told of


@pytest.mark.parametrize("seconds", OUTAGES)
def test_requests_that_store_nothing_go_on_others_are_a_503_and_batches_wait(
    tmp_path: Path,
    engine: FakeEngine,
    own_postgres: PostgresServer,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if seconds < 60:  # what goes on then, goes on because it is told that the database is back
        monkeypatch.setattr(retries, "FIRST_PAUSE", 60.0)
        monkeypatch.setattr(retries, "LOOK", 60.0)
    storage = Storage(tmp_path, shared=SharedDatabase(SecretUrl(own_postgres.url()), 2))
    with running_server(engine, HttpConfig(), storage=storage) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=PATIENCE)
        stored = client.responses.create(model=MODEL, input="hi")
        engine.delay = 0.05
        batch = submit(client, jsonl(chat_line(number) for number in range(LINES)))
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, PATIENCE)
        before = client.batches.retrieve(batch.id).request_counts.completed
        own_postgres.stop()
        begun = time.monotonic()
        while True:
            check_outage(url, engine, stored.id, batch.input_file_id)
            if time.monotonic() - begun >= seconds:
                break
            time.sleep(5)
        own_postgres.start()
        begun, completed = time.monotonic(), 0
        while completed <= before:
            assert time.monotonic() - begun < AT_ONCE, "it waits for the end of its pause"
            with contextlib.suppress(openai.InternalServerError):
                completed = client.batches.retrieve(batch.id).request_counts.completed
            time.sleep(0.02)
        ended = None
        while ended is None:
            with contextlib.suppress(openai.InternalServerError):
                ended = wait_for(client, batch.id, seconds=PATIENCE)
        assert (ended.status, ended.request_counts.completed) == ("completed", LINES)
        found = [one["custom_id"] for one in results(client, ended.output_file_id)]
        assert found == [f"line-{number}" for number in range(LINES)]
        assert client.responses.create(model=MODEL, input="hi").status == "completed"
        failures = re.findall(
            r"palladio:database_failures_total{.*} (\d+)", httpx.get(f"{url}/metrics", timeout=PATIENCE).text
        )
        assert int(failures[0]) > 0
    assert "Traceback" not in caplog.text


def check_outage(url: str, engine: FakeEngine, response_id: str, file_id: str) -> None:
    limits = httpx.Limits(max_keepalive_connections=0)  # the server closes one that is idle for seconds
    with httpx.Client(base_url=url, timeout=PATIENCE, limits=limits) as http:
        check_answers(http, engine, response_id, file_id)


def check_answers(http: httpx.Client, engine: FakeEngine, response_id: str, file_id: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert http.post("/v1/responses", json={"input": "hi", "store": False}).status_code == 200
    assert http.get("/health").status_code == 200
    asked = [http.get(f"/v1/{path}") for path in ("files", "batches", f"responses/{response_id}")]
    again = {"input": "hi", "previous_response_id": response_id}
    asked += [http.post("/v1/responses", json=again), http.delete(f"/v1/files/{file_id}")]
    for fields in ({}, {"store": True, "stream": True}, {"background": True}):
        asked.append(http.post("/v1/responses", json={"input": "hi", "max_output_tokens": STORED, **fields}))
    form = {"files": {"file": ("in.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    asked.append(http.post("/v1/files", **form))
    for answer in asked:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert "--database-url" in answer.json()["error"]["message"]
        assert int(answer.headers["Retry-After"]) > 0
    asked_for = {call.params.max_tokens for call in engine.calls}
    assert STORED not in asked_for, "tokens were made for a response that could not be stored"
