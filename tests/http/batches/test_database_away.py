"""A PostgreSQL that is away for a while: who notices, and that all goes on after that."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from palladio.http.batches import batch_run, batch_worker
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl, results, submit, wait_for
from tests.http.conftest import running_server, wait_until
from tests.postgres_server import PostgresServer, missing

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """One that the test may stop."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    server = PostgresServer.create()
    server.start()
    yield server
    server.remove()


def test_requests_that_store_nothing_go_on_others_are_a_503_and_batches_wait(
    tmp_path: Path, engine: FakeEngine, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "POLL", 0.2)
    monkeypatch.setattr(batch_worker, "_FIRST_PAUSE", 0.2)
    storage = Storage(tmp_path, shared=SharedDatabase(SecretUrl(own_postgres.url()), 2))
    with running_server(engine, HttpConfig(), storage=storage) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=20)
        stored = client.responses.create(model=MODEL, input="hi")
        engine.delay = 0.05
        batch = submit(client, jsonl(chat_line(number) for number in range(300)))
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0)
        own_postgres.stop()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        assert httpx.post(f"{url}/v1/responses", json={"input": "hi", "store": False}).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200
        again = {"input": "hi", "previous_response_id": stored.id}
        asked = [httpx.get(f"{url}/v1/{path}") for path in ("files", "batches", f"responses/{stored.id}")]
        asked += [httpx.post(f"{url}/v1/responses", json=again), httpx.delete(f"{url}/v1/files/{batch.input_file_id}")]
        for answer in asked:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
            assert int(answer.headers["Retry-After"]) > 0
        own_postgres.start()
        ended = None
        while ended is None:
            with contextlib.suppress(openai.InternalServerError):
                ended = wait_for(client, batch.id, seconds=60)
        assert (ended.status, ended.request_counts.completed) == ("completed", 300)
        found = [one["custom_id"] for one in results(client, ended.output_file_id)]
        assert found == [f"line-{number}" for number in range(300)]
