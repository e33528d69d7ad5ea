"""Owners of API keys: nobody finds what another owner made, on any route that takes an id."""

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.conftest import running_server, wait_until
from tests.http.security.owned import (
    ALICE,
    BATCH,
    BOB,
    FILE,
    KEYS,
    RESPONSE,
    batch_of,
    client_of,
    new_batch,
    new_item,
    new_request,
    new_response,
    upload,
)

Ask = Callable[[httpx.Client, str], httpx.Response]


@dataclasses.dataclass(frozen=True)
class Users:
    """Clients of one server, each with a key."""

    alice: httpx.Client
    bob: httpx.Client
    admin: httpx.Client


@pytest.fixture
def users(engine: FakeEngine) -> Iterator[Users]:
    config = HttpConfig(api_key=(ALICE, BOB), admin_api_key=KEYS["admin"])
    with running_server(engine, config) as url:
        yield Users(**{name: client_of(url, key) for name, key in KEYS.items()})


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to name an object.

    Attributes:
        make: makes one with a client's key, and returns its id.
        ask: names it.
        missing: an id of this kind that there is not.
    """

    make: Callable[[httpx.Client], str]
    ask: Ask
    missing: str


ITEM = {"type": "item_reference"}


OWNED: dict[str, Row] = {  # "METHOD path", and behind # the field of the body that names the object
    "GET /v1/files/{file_id}": Row(upload, lambda c, i: c.get(f"/v1/files/{i}"), FILE),
    "GET /v1/files/{file_id}/content": Row(upload, lambda c, i: c.get(f"/v1/files/{i}/content"), FILE),
    "DELETE /v1/files/{file_id}": Row(upload, lambda c, i: c.delete(f"/v1/files/{i}"), FILE),
    "GET /v1/batches/{batch_id}": Row(new_batch, lambda c, i: c.get(f"/v1/batches/{i}"), BATCH),
    "POST /v1/batches/{batch_id}/cancel": Row(new_batch, lambda c, i: c.post(f"/v1/batches/{i}/cancel"), BATCH),
    "POST /v1/batches#input_file_id": Row(upload, lambda c, i: c.post("/v1/batches", json=batch_of(i)), FILE),
    "GET /v1/responses/{response_id}": Row(new_response, lambda c, i: c.get(f"/v1/responses/{i}"), RESPONSE),
    "DELETE /v1/responses/{response_id}": Row(new_response, lambda c, i: c.delete(f"/v1/responses/{i}"), RESPONSE),
    "POST /v1/responses/{response_id}/cancel": Row(
        lambda c: new_response(c, background=True), lambda c, i: c.post(f"/v1/responses/{i}/cancel"), RESPONSE
    ),
    "GET /v1/responses/{response_id}/input_items": Row(
        new_response, lambda c, i: c.get(f"/v1/responses/{i}/input_items"), RESPONSE
    ),
    "POST /v1/responses#previous_response_id": Row(
        new_response,
        lambda c, i: c.post("/v1/responses", json={"input": "and?", "previous_response_id": i}),
        RESPONSE,
    ),
    "POST /v1/responses#input": Row(
        new_item, lambda c, i: c.post("/v1/responses", json={"input": [ITEM | {"id": i}]}), "msg_0"
    ),
    "POST /v1/responses/input_tokens#previous_response_id": Row(
        new_response,
        lambda c, i: c.post("/v1/responses/input_tokens", json={"input": "and?", "previous_response_id": i}),
        RESPONSE,
    ),
    "POST /v1/responses/input_tokens#input": Row(
        new_item, lambda c, i: c.post("/v1/responses/input_tokens", json={"input": [ITEM | {"id": i}]}), "msg_0"
    ),
    "POST /v1/responses/render#previous_response_id": Row(
        new_response,
        lambda c, i: c.post("/v1/responses/render", json={"input": "and?", "previous_response_id": i}),
        RESPONSE,
    ),
    "POST /v1/responses/render#input": Row(
        new_item, lambda c, i: c.post("/v1/responses/render", json={"input": [ITEM | {"id": i}]}), "msg_0"
    ),
    "GET /v1/requests/{request_id}/explain": Row(
        new_request, lambda c, i: c.get(f"/v1/requests/{i}/explain"), "0" * 32
    ),
}


VECTORS = ("/embed", "/embed_all", "/embed_sparse", "/predict")
SCORING = ("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/classify", "/classify")
NOT_OWNED = {
    "GET /v1/models/{name}": "models are everybody's",
    "GET /v1/chat/completions/{completion_id}": "none is stored",
    "POST /v1/chat/completions/{completion_id}": "none is stored",
    "DELETE /v1/chat/completions/{completion_id}": "none is stored",
    "GET /v1/chat/completions/{completion_id}/messages": "none is stored",
    "POST /abort_request#rid": "of its own below: what is unknown is no error",
    "POST /start_profile#profile_id": "a new name",
    # the request's own new id, a namespace of each owner: below
    **{
        f"POST {path}#{field}": "the request's own"
        for path, fields in {
            "/v1/chat/completions": ("rid", "request_id"),
            "/v1/chat/completions/batch": ("rid", "request_id"),
            "/v1/completions": ("rid", "request_id"),
            "/pooling": ("rid", "request_id"),
            "/v1/embeddings": ("rid", "request_id"),
            "/v1/chat/completions/render": ("rid", "request_id"),
            "/v1/completions/render": ("rid", "request_id"),
            "/apply-template": ("rid", "request_id"),
            "/invocations": ("rid", "request_id"),
            "/generate": ("rid",),
            "/encode": ("rid",),
            **dict.fromkeys((*SCORING, *VECTORS), ("rid", "request_id")),
        }.items()
        for field in fields
    },
}


LISTS = {
    "GET /v1/files": upload,
    "GET /v1/batches": new_batch,
    "GET /v1/chat/completions": None,  # none is stored
}


def named_objects(engine: FakeEngine) -> set[str]:
    """Every way to name an object: of paths, and of the fields of JSON bodies."""
    found = set()
    for path, methods in create_app(engine, HttpConfig()).openapi()["paths"].items():
        for method, operation in methods.items():
            route = f"{method.upper()} {path.replace(':path', '')}"
            if "{" in path:
                found.add(route)
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for field in schema.get("properties", {}):
                if re.search(r"(^|_)r?id$", field) or (field == "input" and path.startswith("/v1/responses")):
                    found.add(f"{route}#{field}")
    return found


def test_every_route_that_names_an_object_is_looked_at_here(engine: FakeEngine) -> None:
    assert named_objects(engine) == OWNED.keys() | NOT_OWNED.keys()


def test_every_list_is_looked_at_here(engine: FakeEngine) -> None:
    paths = create_app(engine, HttpConfig()).openapi()["paths"]
    lists = {
        f"GET {path}"
        for path, methods in paths.items()
        if "get" in methods and any(other.startswith(path + "/{") for other in paths) and path != "/v1/models"
    }
    assert lists == LISTS.keys()


@pytest.mark.parametrize("route", OWNED)
def test_what_is_anothers_is_not_there(users: Users, route: str) -> None:
    row = OWNED[route]
    for owner, stranger in ((users.alice, users.bob), (users.bob, users.alice), (users.admin, users.alice)):
        name = row.make(owner)
        missing, refused = row.ask(stranger, row.missing), row.ask(stranger, name)
        assert missing.status_code == refused.status_code == 404
        assert refused.text.replace(name, "ID") == missing.text.replace(row.missing, "ID")
        assert row.ask(owner, name).status_code in (200, 409), "nothing has become of it"  # 409: the batch has ended
    assert row.ask(users.admin, row.make(users.alice)).status_code in (200, 409)


@pytest.mark.parametrize("route", [route for route, make in LISTS.items() if make is not None])
def test_lists_have_ones_own(users: Users, route: str) -> None:
    make, path = LISTS[route], route.removeprefix("GET ")
    ids = {name: [make(client) for _ in range(3)] for name, client in vars(users).items()}

    def listed(client: httpx.Client, **query: Any) -> list[str]:
        return [entry["id"] for entry in client.get(path, params=query).json()["data"]]

    for name in ("alice", "bob"):
        client = vars(users)[name]
        assert sorted(listed(client)) == sorted(ids[name])
        assert listed(client, limit=1) == ids[name][-1:]
        assert listed(client, after=ids["bob"][1]) == [one for one in reversed(ids[name]) if one < ids["bob"][1]]
    assert set(listed(users.admin)) >= {one for some in ids.values() for one in some}


@pytest.fixture
def running(engine: FakeEngine) -> Iterator[Callable[..., threading.Thread]]:
    """Has a client send a request that does not end by itself, in a thread that ends with it."""
    engine.delay = 0.05
    threads: list[threading.Thread] = []

    def start(client: httpx.Client, rid: str, path: str = "/v1/completions", **fields: Any) -> threading.Thread:
        count = len(engine._running)
        body = {"rid": rid, "ignore_eos": True} | fields
        if path == "/v1/completions":
            body |= {"prompt": "a", "max_tokens": 1000}
        threads.append(threading.Thread(target=lambda: client.post(path, json=body)))
        threads[-1].start()
        wait_until(lambda: len(engine._running) > count)
        return threads[-1]

    yield start
    for call in engine._running.values():
        call.aborted = True
    for thread in threads:
        thread.join(10)


def aborted(client: httpx.Client, **body: Any) -> int:
    return client.post("/abort_request", json=body).json()["aborted"]


def test_request_ids_are_a_namespace_of_each_owner(
    engine: FakeEngine, running: Callable[..., threading.Thread]
) -> None:
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB))) as url:
        alice, bob, other = client_of(url, KEYS["alice"]), client_of(url, KEYS["bob"]), client_of(url, KEYS["bob"])
        running(alice, "same")
        assert aborted(bob, rid="same") == 0
        assert bob.get("/v1/requests/same/explain").status_code == 404
        running(bob, "same")
        assert {call.options.owner for call in engine.calls} == {"alice", "bob"}
        again = other.post("/v1/completions", json={"prompt": "a", "rid": "same"})
        assert (again.status_code, again.json()["error"]["param"]) == (400, "rid")
        for client in (alice, bob):
            told = client.get("/v1/requests/same/explain").json()
            assert (told["id"], told["samples"][0]["status"]) == ("same", "waiting")
        assert aborted(bob, rid="same") == 1
        wait_until(lambda: len(engine._running) == 1)
        running(bob, "more")
        assert aborted(other, abort_all=True) == 1
        wait_until(lambda: len(engine._running) == 1)
        assert engine.calls[0].request_id in engine._running, "alice's runs on"
        assert aborted(bob, rid="alice/same") == 0, "nor by what the engine calls it"
        assert aborted(alice, rid="same") == 1


def test_the_admin_key_aborts_anybodys(engine: FakeEngine, running: Callable[..., threading.Thread]) -> None:
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB), admin_api_key=KEYS["admin"])) as url:
        alice, bob, admin = (client_of(url, key) for key in KEYS.values())
        running(alice, "a")
        running(bob, "b")
        assert bob.post("/abort_request", json={"abort_all": True}).status_code == 401
        assert aborted(admin, rid="a") == 1
        wait_until(lambda: len(engine._running) == 1)
        running(alice, "c")
        assert aborted(admin, abort_all=True) == 2


def test_answers_have_the_clients_ids(engine: FakeEngine) -> None:
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB))) as url:
        alice = client_of(url, KEYS["alice"])
        body = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 1}, "rid": ["one", "two"]}
        assert [one["meta_info"]["id"] for one in alice.post("/generate", json=body).json()] == ["one", "two"]
        stream = alice.post("/generate", json={"text": "a", "rid": "three", "stream": True}).text
        assert '"id":"three"' in stream
        assert "alice" not in stream
        assert {call.options.owner for call in engine.calls} == {"alice"}
        assert alice.get("/v1/requests/two/explain").status_code == 200
        assert client_of(url, KEYS["bob"]).get("/v1/requests/two/explain").status_code == 404


def test_embeddings_have_owners_and_the_clients_ids(engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(6, "last", normalized=True)
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB))) as url:
        alice = client_of(url, KEYS["alice"])
        answer = alice.post("/encode", json={"text": ["a", "b"], "rid": ["one", "two"]}).json()
        assert [one["meta_info"]["id"] for one in answer] == ["one", "two"]
        assert alice.post("/v1/embeddings", json={"input": "a"}).status_code == 200
    assert [call.options.owner for call in engine.calls] == ["alice"] * 3


def test_equal_request_ids_are_explained_to_their_owners(users: Users) -> None:
    for client, prompt in ((users.alice, "a"), (users.bob, "b c d e f")):
        client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, "rid": "mine"})
    counts = [vars(users)[name].get("/v1/requests/mine/explain").json()["samples"][0] for name in ("alice", "bob")]
    assert counts[0]["prompt_tokens"] < counts[1]["prompt_tokens"]
    assert users.admin.get("/v1/requests/mine/explain").json()["samples"][0] == counts[1], "the latest"


def test_a_batch_runs_as_its_owner(users: Users, engine: FakeEngine) -> None:
    mine, others = new_response(users.alice), new_response(users.bob)
    lines = [
        chat_line(number, "/v1/responses") | {"body": {"input": "and?", "previous_response_id": name, "store": True}}
        for number, name in enumerate((mine, others))
    ]
    file = users.alice.post("/v1/files", data={"purpose": "batch"}, files={"file": jsonl(lines)}).json()["id"]
    batch = users.alice.post("/v1/batches", json=batch_of(file) | {"endpoint": "/v1/responses"}).json()["id"]

    def state() -> dict[str, Any]:
        return users.alice.get(f"/v1/batches/{batch}").json()

    wait_until(lambda: state()["status"] == "completed", 20)
    assert engine.calls[-1].options.owner == "alice"
    assert engine.calls[-1].options.background
    output, errors = state()["output_file_id"], state()["error_file_id"]
    for result in (output, errors):
        assert users.bob.get(f"/v1/files/{result}/content").status_code == 404
    answered = users.alice.get(f"/v1/files/{output}/content").json()["response"]["body"]
    assert answered["previous_response_id"] == mine
    refused = users.alice.get(f"/v1/files/{errors}/content").json()["response"]
    assert (refused["status_code"], refused["body"]["error"]["code"]) == (404, "response_not_found")
    for client, status in ((users.alice, 200), (users.bob, 404), (users.admin, 200)):
        assert client.get(f"/v1/responses/{answered['id']}").status_code == status


def test_of_two_keys_the_admins_counts(users: Users) -> None:
    name = upload(users.alice)
    for headers in (
        {"authorization": f"Bearer {KEYS['bob']}", "x-api-key": KEYS["admin"]},
        {"authorization": f"Bearer {KEYS['alice']}", "x-api-key": KEYS["bob"]},
    ):
        assert users.bob.get(f"/v1/files/{name}", headers=headers).status_code == 200
    both = {"authorization": f"Bearer {KEYS['bob']}", "x-api-key": KEYS["alice"]}
    assert users.bob.get(f"/v1/files/{name}", headers=both).status_code == 404, "the first of two"


def test_organizations_are_no_authentication(users: Users) -> None:
    name = upload(users.alice)
    headers = {"openai-organization": "alice", "openai-project": "alice", "x-owner": "alice"}
    assert users.bob.get(f"/v1/files/{name}", headers=headers).status_code == 404
