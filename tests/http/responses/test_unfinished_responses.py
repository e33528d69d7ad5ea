"""Responses in the background that do not end as planned: a full disk, an engine that dies, another server."""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.responses.response_store import ResponseStore
from palladio.http.responses.unfinished_responses import MAX_AT_ONCE, MAX_ATTEMPTS
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import EngineDeadError, OverloadedError
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import running_server, wait_until

ROUTE = "/v1/responses"
BODY = {"model": MODEL, "input": "hi", "background": True}


@pytest.fixture
def restart(engine: FakeEngine, tmp_path: Path) -> Iterator[Callable[[], httpx.Client]]:
    """Ends the server as by a signal, if one runs, and starts one with the same storage; the engine is as it is."""
    with ExitStack() as stack:

        def start() -> httpx.Client:
            state, engine.state = engine.state, "draining"
            stack.pop_all().close()
            engine.state = state
            url = stack.enter_context(running_server(engine, HttpConfig(), storage=Storage(tmp_path / "storage")))
            return stack.enter_context(httpx.Client(base_url=url, timeout=10))

        yield start


def begin(client: httpx.Client) -> str:
    name: str = client.post(ROUTE, json=BODY).json()["id"]
    return name


def status(client: httpx.Client, name: str) -> str:
    found: str = client.get(f"{ROUTE}/{name}").json()["status"]
    return found


def left_unfinished(restart: Callable[[], httpx.Client], engine: FakeEngine, count: int = 1) -> list[str]:
    """Some that a server has left."""
    client = restart()
    engine.first_delay = 30
    names = [begin(client) for _ in range(count)]
    wait_until(lambda: len(engine.calls) == count)
    engine.first_delay = 0
    return names


def kinds(client: httpx.Client, name: str) -> list[str]:
    text = client.get(f"{ROUTE}/{name}", params={"stream": True}).text
    return [line.removeprefix("event: response.") for line in text.splitlines() if line.startswith("event: ")]


@pytest.mark.parametrize("cancels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_disk_is_full_at_its_end(
    restart: Callable[[], httpx.Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    tries = 0

    async def full(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    client = restart()
    engine.first_delay = 30 if cancels else 0
    with monkeypatch.context() as patch:
        patch.setattr(ResponseStore, "finish", full)
        if cancels:
            name = begin(client)
            assert client.post(f"{ROUTE}/{name}/cancel").json()["status"] == "cancelled"
        else:
            events = client.post(ROUTE, json=BODY | {"stream": True}).text  # which does not wait for the disk
            assert events.split("event: ")[-1].startswith("response.completed")
            name = events.split('"id":"')[1].split('"')[0]
        ended = "cancelled" if cancels else "completed"
        assert status(client, name) == ended
        assert client.post(f"{ROUTE}/{name}/cancel").json()["status"] == ended
        wait_until(lambda: tries == 2)
    engine.first_delay = 0

    def has_taken() -> bool:
        answer = client.post(ROUTE, json={"model": MODEL, "input": "hi", "previous_response_id": name})
        return answer.is_success or "its status is cancelled" in answer.text

    wait_until(has_taken)
    assert status(restart(), name) == ended


def test_what_the_engine_died_of_is_not_made_again(
    restart: Callable[[], httpx.Client], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object, **__: object) -> Any:
        engine.state = "dead"
        raise EngineDeadError("it crashed")
        yield

    client = restart()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "generate", die)
        name = begin(client)
        wait_until(lambda: status(client, name) == "failed")
    engine.state = "ready"
    client = restart()
    assert status(client, name) == "failed"
    assert kinds(client, name)[-1] == "failed"
    assert not engine.calls


def test_cancelling_before_it_is_made_again(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    [name] = left_unfinished(restart, engine)
    engine.state = "starting"
    client = restart()
    waiting = client.get(f"{ROUTE}/{name}", params={"stream": True})
    assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "overloaded")
    assert client.post(f"{ROUTE}/{name}/cancel").json()["status"] == "cancelled"
    engine.state = "ready"
    other = begin(client)
    wait_until(lambda: status(client, other) == "completed")
    assert status(client, name) == "cancelled"
    assert kinds(client, name) == ["created", "queued", "incomplete"]
    assert len(engine.calls) == 2  # before the restart, and the other one


def test_a_few_are_made_again_at_a_time(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    names = left_unfinished(restart, engine, MAX_AT_ONCE + 3)
    engine.calls.clear()
    engine.holds = True
    client = restart()
    status(client, names[0])
    wait_until(lambda: len(engine.calls) == MAX_AT_ONCE)
    assert [status(client, name) for name in names] == ["queued"] * len(names)
    assert len(engine.calls) == MAX_AT_ONCE
    engine.holds = False
    wait_until(lambda: all(status(client, name) == "completed" for name in names))
    assert len(engine.calls) == len(names)


def test_it_waits_while_the_engine_has_no_room(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    [name] = left_unfinished(restart, engine)
    engine.refuse = OverloadedError("the queue is full", retry_after=0.05)
    client = restart()
    refused = begin(client)  # a new one does not
    wait_until(lambda: status(client, refused) == "failed")
    assert status(client, name) == "queued"
    engine.refuse = None
    wait_until(lambda: status(client, name) == "completed")


def test_servers_that_end_again_and_again(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    [name] = left_unfinished(restart, engine)
    engine.first_delay = 30
    for number in range(MAX_ATTEMPTS):
        client = restart()
        assert status(client, name) == "queued"
        wait_until(lambda number=number: len(engine.calls) == number + 2)
    client = restart()
    status(client, name)
    wait_until(lambda: status(client, name) == "failed")
    assert "servers stopped" in client.get(f"{ROUTE}/{name}").json()["error"]["message"]
    assert len(engine.calls) == MAX_ATTEMPTS + 1


def test_deleting_before_it_is_made_again(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    [name] = left_unfinished(restart, engine)
    engine.state = "starting"
    client = restart()
    assert client.delete(f"{ROUTE}/{name}").is_success
    engine.state = "ready"
    other = begin(client)
    wait_until(lambda: status(client, other) == "completed")
    assert client.get(f"{ROUTE}/{name}").status_code == 404
    assert len(engine.calls) == 2


def test_warnings_survive_a_restart(restart: Callable[[], httpx.Client], engine: FakeEngine) -> None:
    client = restart()
    engine.first_delay = 30
    name = client.post(ROUTE, json=BODY | {"xyzzy": 1, "chat_template_kwargs": {"foo_bar": 1}}).json()["id"]
    wait_until(lambda: len(engine.calls) == 1)
    engine.first_delay = 0
    again = restart()
    wait_until(lambda: status(again, name) == "completed")
    told = again.get(f"{ROUTE}/{name}").json()["warnings"]
    assert [warning["param"] for warning in told] == ["xyzzy", "chat_template_kwargs.foo_bar"]
