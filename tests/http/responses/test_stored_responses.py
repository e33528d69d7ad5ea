"""Responses that are kept: conversations, restarts, deletion, limits, and those that are made in the background."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.security.callers import SERVER
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.errors import HttpError
from palladio.runtime.interface.errors import GenerationError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import OpenStorage, running_server, wait_until

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls and 'calls' }};{% endfor %}[assistant]"


@pytest.fixture
def restart(engine: FakeEngine, tmp_path: Path, open_storage: OpenStorage) -> Iterator[Callable[..., openai.OpenAI]]:
    """Ends the server, if one runs, and starts one with the same storage."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    with ExitStack() as stack:

        def start(**config: Any) -> openai.OpenAI:
            stack.pop_all().close()
            settings = HttpConfig(chat_template=str(template), **config)
            url = stack.enter_context(running_server(engine, settings, storage=open_storage(tmp_path / "storage")))
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=20)
            return stack.enter_context(client)

        yield start


@pytest.fixture
def prompt_of(engine: FakeEngine, tokenizer: Tokenizer) -> Callable[[], str]:
    return lambda: tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def test_a_conversation_over_a_restart(
    restart: Callable[..., openai.OpenAI], engine: FakeEngine, prompt_of: Callable[[], str]
) -> None:
    engine.reply = "Hello"
    client = restart()
    first = client.responses.create(model=MODEL, input="one", instructions="Be brief.")
    with client.responses.stream(model=MODEL, input="two", previous_response_id=first.id) as stream:
        second = stream.get_final_response()
    assert prompt_of() == "[user]one;[assistant]Hello;[user]two;[assistant]"
    client = restart()
    third = client.responses.create(model=MODEL, input="three", previous_response_id=second.id, instructions="Rhyme.")
    said = "[user]one;[assistant]Hello;[user]two;[assistant]Hello;[user]three;[assistant]"
    assert prompt_of() == f"[system]Rhyme.;{said}"
    counted = client.responses.input_tokens.count(
        model=MODEL, input="three", previous_response_id=second.id, instructions="Rhyme."
    )
    assert counted.input_tokens == len(engine.calls[-1].prompt_ids)
    assert client.responses.retrieve(third.id).output_text == "Hello"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):  # the one that is gone
        client.responses.create(model=MODEL, input="four", previous_response_id=third.id)


def test_input_items_and_references(restart: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    client = restart()
    given: Any = [
        {"role": "user", "content": "one"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]},
    ]
    first = client.responses.create(model=MODEL, input=given)
    items = list(client.responses.input_items.list(first.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    page = client.responses.input_items.list(first.id, limit=1)
    assert ([item.id for item in page.data], page.has_more) == ([items[3].id], True)
    after = client.responses.input_items.list(first.id, after=items[3].id, limit=2)
    assert [item.id for item in after.data] == [items[2].id, items[1].id]
    with pytest.raises(openai.BadRequestError, match="after"):
        client.responses.input_items.list(first.id, after="x")
    references: Any = [{"type": "item_reference", "id": name} for name in (items[0].id, first.output[0].id)]
    client.responses.create(model=MODEL, input=references)
    assert prompt_of() == "[user]one;[assistant]Hello, wörld 🎉!;[assistant]"


def test_what_is_not_kept(restart: Callable[..., openai.OpenAI]) -> None:
    client = restart(max_stored_responses=2)
    made = [client.responses.create(model=MODEL, input=str(number)) for number in range(3)]
    kept = client.responses.create(model=MODEL, input="hi", store=False)
    for gone in (made[0], kept):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone.id)
    assert client.responses.retrieve(made[1].id).id == made[1].id
    client.responses.delete(made[1].id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made[1].id)


def ended(client: openai.OpenAI, response_id: str) -> Any:
    wait_until(lambda: client.responses.retrieve(response_id).status not in ("queued", "in_progress"))
    return client.responses.retrieve(response_id)


def test_in_the_background(restart: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = restart()
    engine.holds = True
    made = client.responses.create(model=MODEL, input="hi", background=True)
    assert (made.status, made.background) == ("queued", True)
    with pytest.raises(openai.BadRequestError, match="no answer to continue from"):
        client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    engine.holds = False
    final = ended(client, made.id)
    assert (final.status, final.output_text) == ("completed", "Hello, wörld 🎉!")
    client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    with pytest.raises(openai.BadRequestError, match="temperature"):  # at once
        client.responses.create(model=MODEL, input="hi", background=True, temperature=-1)
    engine.fail = GenerationError("not finite")
    failed = ended(client, client.responses.create(model=MODEL, input="hi", background=True).id)
    assert (failed.status, failed.error and failed.error.message) == ("failed", "not finite")


def test_following_one_in_the_background(restart: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = restart()
    engine.delay = 0.02
    kinds, name = [], ""
    for event in client.responses.create(model=MODEL, input="hi", background=True, stream=True):
        kinds.append(event.type)
        if event.type == "response.created":
            name = event.response.id
        if event.type == "response.output_text.delta":
            break  # the client goes away
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    seen = len(kinds) - 1
    rest = list(client.responses.retrieve(name, stream=True, starting_after=seen))
    assert [event.sequence_number for event in rest] == list(range(seen + 1, seen + 1 + len(rest)))
    assert rest[-1].type == "response.completed"
    client = restart()
    again = list(client.responses.retrieve(name, stream=True, starting_after=seen))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in rest]
    with client.responses.stream(response_id=name) as stream:
        assert stream.get_final_response().output_text == "Hello, wörld 🎉!"
    plain = client.responses.create(model=MODEL, input="hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(plain.id, stream=True)


def test_cancelling(restart: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = restart()
    engine.delay = 0.05
    made = client.responses.create(model=MODEL, input="hi", background=True)
    wait_until(lambda: client.responses.retrieve(made.id).status == "in_progress")
    assert client.responses.cancel(made.id).status == "cancelled"
    assert engine.calls[-1].aborted
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.incomplete"
    dropped = client.responses.create(model=MODEL, input="hi", background=True)
    client.responses.delete(dropped.id)
    wait_until(lambda: engine.calls[-1].aborted or engine.calls[-1].finished)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(dropped.id)
    engine.delay = 0.0
    plain = client.responses.create(model=MODEL, input="hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(plain.id)


def test_a_restart_makes_unfinished_ones_again(restart: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = restart()
    engine.first_delay = 30
    given: Any = {"model": MODEL, "background": True}
    first = client.responses.create(**given, input="one")
    wait_until(lambda: bool(engine.calls))
    engine.first_delay = 0
    second = client.responses.create(**given, input="two")
    assert ended(client, second.id).status == "completed"
    engine.state = "draining"  # as a server that ends has it
    restart()
    engine.state = "starting"
    client = restart()
    assert client.responses.retrieve(first.id).status == "queued"
    engine.state = "ready"
    final = ended(client, first.id)
    assert (final.status, final.output_text, final.created_at) == ("completed", "Hello, wörld 🎉!", first.created_at)
    assert [item.type for item in client.responses.input_items.list(first.id)] == ["message"]


def test_one_that_cannot_be_made_again(restart: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = restart()
    base = client.responses.create(model=MODEL, input="one")
    engine.first_delay = 30
    made = client.responses.create(model=MODEL, input="two", background=True, previous_response_id=base.id)
    client.responses.delete(base.id)
    wait_until(lambda: len(engine.calls) == 2)
    engine.state = "draining"
    restart()
    engine.state, engine.first_delay = "ready", 0
    client = restart()
    final = ended(client, made.id)
    assert final.status == "failed"
    assert final.error is not None
    assert base.id in final.error.message
    assert [event.type for event in client.responses.retrieve(made.id, stream=True)][-1] == "response.failed"


def test_a_full_disk(restart: Callable[..., openai.OpenAI], monkeypatch: pytest.MonkeyPatch) -> None:
    client = restart()
    url = str(client.base_url)

    async def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ResponseStore, "add", full)
    answer = httpx.post(f"{url}responses", json={"input": "hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    stream = httpx.post(f"{url}responses", json={"input": "hi", "stream": True}).text
    assert "response.completed" not in stream
    assert "event: response.failed" in stream


def test_the_store_by_itself(tmp_path: Path, open_storage: OpenStorage) -> None:
    async def use() -> None:
        storage = open_storage(tmp_path / "storage")
        store = ResponseStore(storage.database, 3)
        for number in range(5):
            previous = f"resp_{number - 1}" if number else None
            item = {"id": f"msg_{number}", "type": "message"}
            response = {"id": f"resp_{number}", "previous_response_id": previous, "status": "completed"}
            await store.add(StoredResponse(response | {"output": [item | {"id": f"out_{number}"}]}), [item], SERVER)
        assert not await store.delete("resp_0", SERVER)
        assert (await store.get("resp_4", SERVER)).response["previous_response_id"] == "resp_3"
        with pytest.raises(HttpError, match="resp_1"):
            await store.conversation("resp_4", "previous_response_id", SERVER)
        assert set(await store.items(["msg_1", "msg_4", "out_4"], SERVER)) == {"msg_4", "out_4"}
        assert not await store.finish(StoredResponse({"id": "resp_0", "status": "completed", "output": []}))
        storage.close()

    asyncio.run(use())
