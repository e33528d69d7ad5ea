"""Responses of servers that share a database."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from palladio.http.responses import unfinished_responses
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import running_server, wait_until

pytestmark = pytest.mark.postgres

LEASE = 0.8  # seconds


@pytest.fixture
def start(
    tmp_path: Path, database_url: SecretUrl, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[openai.OpenAI, Storage]]]:
    """Starts a server on an engine."""
    monkeypatch.setattr(unfinished_responses, "POLL", 0.2)
    shared = SharedDatabase(database_url, num_connections=2, lease=LEASE)
    with contextlib.ExitStack() as stack:

        def run(engine: FakeEngine) -> tuple[openai.OpenAI, Storage]:
            storage = Storage(tmp_path, shared=shared)
            url = stack.enter_context(running_server(engine, HttpConfig(), storage=storage))
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=20)
            return stack.enter_context(client), storage

        yield run


@pytest.mark.slow
def test_any_server_goes_on_from_what_another_one_stored(start, tokenizer: Tokenizer) -> None:
    clients = [start(FakeEngine(tokenizer, reply="Hello"))[0] for _ in range(2)]
    previous = None
    for turn in range(4):
        client = clients[turn % 2]
        previous = client.responses.create(model=MODEL, input=f"turn {turn}", previous_response_id=previous).id
    clients[0].responses.delete(previous)
    with pytest.raises(openai.NotFoundError):
        clients[1].responses.retrieve(previous)


def test_a_cancel_at_one_server_ends_what_another_one_makes(start, tokenizer: Tokenizer) -> None:
    busy = FakeEngine(tokenizer, reply="Hello")
    busy.delay = 30.0
    (first, _), (second, _) = start(busy), start(FakeEngine(tokenizer))
    made = first.responses.create(model=MODEL, input="hi", background=True)
    wait_until(lambda: bool(busy._running), 20)
    with pytest.raises(openai.APIStatusError, match="runs on another server") as error:
        list(second.responses.retrieve(made.id, stream=True))
    assert error.value.status_code == 503
    assert second.responses.cancel(made.id).status == "cancelled"
    wait_until(lambda: not busy._running, 20)
    wait_until(lambda: first.responses.retrieve(made.id).status == "cancelled", 20)


def test_what_a_dead_server_left_is_made_again_and_what_a_live_one_makes_is_not(start, tokenizer: Tokenizer) -> None:
    busy, idle = FakeEngine(tokenizer, reply="Hello"), FakeEngine(tokenizer, reply="World")
    busy.delay = 30.0
    (first, storage), (second, _) = start(busy), start(idle)
    made = first.responses.create(model=MODEL, input="hi", background=True)
    second.responses.retrieve(made.id)  # it begins to watch
    wait_until(lambda: bool(busy._running), 20)
    with pytest.raises(AssertionError):
        wait_until(lambda: bool(idle.calls), seconds=1.5 * LEASE)
    storage.database._heartbeat.close()  # as if its process ended
    wait_until(lambda: second.responses.retrieve(made.id).status == "completed", 20)
    assert second.responses.retrieve(made.id).output_text == "World"
