"""Whose key is whose, and what becomes of what was stored when keys change."""

import logging
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from palladio.http.app import create_app
from palladio.http.security.callers import ADMIN, ApiKeys, Caller, Callers
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.records.schema import CHANGES, SCHEMA
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.http.security.owned import ALICE, BOB, FILE, KEYS, client_of, new_request, new_response, upload


def test_a_conversation_is_not_gone_on_with_from_anothers_part(engine: FakeEngine, tmp_path: Path) -> None:
    """They shared it before the second key came."""
    folder = tmp_path / "storage"
    with running_server(engine, HttpConfig(api_key=ALICE), storage=Storage(folder)) as url:
        first = new_response(client_of(url, KEYS["alice"]))
    with running_server(engine, HttpConfig(), storage=Storage(folder)) as url:
        second = new_response(client_of(url, None), previous_response_id=first)
    with running_server(engine, HttpConfig(api_key=BOB), storage=Storage(folder)) as url:
        bob = client_of(url, KEYS["bob"])
        assert bob.get(f"/v1/responses/{second}").status_code == 200
        answer = bob.post("/v1/responses", json={"input": "and?", "previous_response_id": second})
        assert (answer.status_code, first in answer.text) == (404, True)


def test_responses_make_room_for_ones_own(engine: FakeEngine) -> None:
    config = HttpConfig(api_key=(ALICE, BOB), admin_api_key=KEYS["admin"], max_stored_responses=2)
    with running_server(engine, config) as url:
        alice, *others = (client_of(url, key) for key in KEYS.values())
        kept = new_response(alice)
        for other in others:
            for _ in range(3):
                new_response(other)
        assert alice.get(f"/v1/responses/{kept}").status_code == 200
        newer = [new_response(alice) for _ in range(2)]
        found = [alice.get(f"/v1/responses/{name}").status_code for name in (kept, *newer)]
        assert found == [404, 200, 200]


def test_ownership_outlives_restarts_and_changes_of_keys(engine: FakeEngine, tmp_path: Path) -> None:
    folder = tmp_path / "storage"

    def seen(files: dict[str, str], *keys: str | None, **config: Any) -> dict[str, list[str]]:
        """Key → the files that it finds. Files that are not there yet are made with the first key."""
        with running_server(engine, HttpConfig(**config), storage=Storage(folder)) as url:
            clients = {key: client_of(url, key) for key in keys}
            for name in files.keys() - {n for n, i in files.items() if i}:
                files[name] = upload(clients[keys[0]])
            return {
                str(key): sorted(n for n, i in files.items() if client.get(f"/v1/files/{i}").status_code == 200)
                for key, client in clients.items()
            }

    files = {"keyless": ""}
    seen(files, None)
    assert seen(files, "first-key-1", api_key="first-key-1") == {"first-key-1": ["keyless"]}, "one key: all"
    files["first"] = ""
    seen(files, "first-key-1", api_key="first-key-1")
    assert seen(files, "second-key", api_key="second-key") == {"second-key": ["first", "keyless"]}, "one key: rotation"
    files["second"] = ""
    two = {"api_key": ("second-key", "first-key-1")}
    assert seen(files, "second-key", "first-key-1", **two) == {"second-key": ["second"], "first-key-1": ["first"]}
    files["alice"] = ""
    named = {"api_key": (ALICE, "alice:another-key", "second-key"), "admin_api_key": "admin"}
    assert seen(files, KEYS["alice"], "another-key", "second-key", "admin", **named) == {
        KEYS["alice"]: ["alice"],
        "another-key": ["alice"],
        "second-key": ["second"],
        "admin": ["alice", "first", "keyless", "second"],
    }
    alone = {"api_key": BOB}
    assert seen(files, KEYS["bob"], **alone) == {KEYS["bob"]: ["first", "keyless", "second"]}, "alice's stay hers"
    assert seen(files, None, admin_api_key="admin") == {"None": ["first", "keyless", "second"]}
    files["admins"] = ""
    assert seen(files, "admin", KEYS["bob"], admin_api_key="admin", **alone)[KEYS["bob"]] == [
        "first",
        "keyless",
        "second",
    ]
    assert seen(files, None) == {"None": ["admins", "alice", "first", "keyless", "second"]}, "no keys: all"


def test_a_database_of_the_time_before_owners_opens(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    folder.mkdir()
    old = sqlite3.connect(folder / "palladio.db")
    old.executescript(SCHEMA)
    old.execute("INSERT INTO files VALUES (?, 'p', 'batch', 'a', 1, 1, NULL)", (FILE,))
    old.commit()
    assert "owner" not in [row[1] for row in old.execute("PRAGMA table_info (files)")]
    old.close()
    for _ in range(2):  # the second time there is nothing to change
        storage = Storage(folder)
        storage.close()
    new = sqlite3.connect(folder / "palladio.db")
    assert new.execute("SELECT owner FROM files").fetchall() == [("",)]
    assert new.execute("PRAGMA user_version").fetchone() == (len(CHANGES),)
    plan = new.execute("EXPLAIN QUERY PLAN SELECT * FROM files WHERE owner = ? ORDER BY position DESC LIMIT 9", ("",))
    assert "files_by_owner" in str(plan.fetchall())
    new.execute("PRAGMA user_version = 99")
    new.close()
    with pytest.raises(ConfigError, match="later version"):
        Storage(folder)


@pytest.mark.parametrize(
    ("written", "sent", "owner"),
    [
        ("alice:alices-key", "alices-key", "alice"),
        ("alice:alices-key", "alice:alices-key", "alice"),  # a key that holds a colon stays one
        ("a.B_c-1:sk:with:colons", "sk:with:colons", "a.B_c-1"),
        ("sk:abc", "sk:abc", None),  # too short behind the colon for a key
        ("sk:abc", "abc", "nobody"),
        ("secret-key:1", "1", "nobody"),
        (":eight-characters", ":eight-characters", None),
        (":eight-characters", "eight-characters", "nobody"),
        ("no name:eight-characters", "eight-characters", "nobody"),
        ("x" * 65 + ":eight-characters", "eight-characters", "nobody"),
        ("alice:", "alice:", None),
        ("plain-key", "plain-key", None),
    ],
)
def test_names_of_keys(written: str, sent: str, owner: str | None) -> None:
    found = ApiKeys([written]).owner_of(sent.encode())
    if owner == "nobody":
        assert found is None
    elif owner is None:
        assert re.fullmatch("key:[0-9a-f]{16}", found or "")
        assert found == ApiKeys(["other-key", written]).owner_of(sent.encode()), "stable"
    else:
        assert found == owner


def test_a_key_has_one_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("bob:alices-key\n")
    for keys, path in (((ALICE, "bob:alices-key"), None), ((ALICE, "alices-key"), None), ((ALICE,), str(file))):
        with pytest.raises(ConfigError, match=r"the same key has two owners, .*alice") as caught:
            ApiKeys(keys, path)
        assert "alices-key" not in str(caught.value)
    assert ApiKeys((ALICE, ALICE, "alice:rotated-key")).owners == {"alice"}


def test_names_in_the_file_of_keys(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# team\n{ALICE}\n{BOB}\n")
    with running_server(engine, HttpConfig(api_key_file=str(file))) as url:
        name = upload(client_of(url, KEYS["alice"]))
        assert client_of(url, KEYS["bob"]).get(f"/v1/files/{name}").status_code == 404
        assert client_of(url, KEYS["alice"]).get(f"/v1/files/{name}").status_code == 200


def test_the_log_names_owners_and_no_keys(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = HttpConfig(api_key=(ALICE, BOB, "unnamed-key", "sk:abc"), admin_api_key=KEYS["admin"])
    told = create_app(engine, config).state.access + caplog.text
    assert re.search(r"API keys of alice, bob, key:[0-9a-f]{16}, key:[0-9a-f]{16}: each owner sees only", told)
    assert "a key has fewer than 8 characters after its colon" in told
    for key in (*KEYS.values(), "unnamed-key", "sk:abc"):
        assert key not in told


def test_requests_are_logged_with_their_owners(engine: FakeEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    told = ObservabilityConfig(log_requests=True, log_requests_target=str(log))
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB)), told) as url:
        new_request(client_of(url, KEYS["alice"]))
    assert "owner='alice'" in log.read_text()
    assert "alices-key" not in log.read_text()


@pytest.mark.parametrize("sees", ["own", "shared", "all"])
@pytest.mark.parametrize("owner", ["alice", "", "key:0123456789abcdef", ADMIN])
def test_sql_and_memory_agree_on_who_sees_what(owner: str, sees: Any) -> None:
    caller = Caller(owner, sees)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (owner TEXT)")
    owners = ["alice", "alic", "alice2", "bob", "", "key:0123456789abcdef", "key:f", "keys", ADMIN]
    database.executemany("INSERT INTO t VALUES (?)", [(one,) for one in owners])
    condition, values = caller.condition()
    found = [row[0] for row in database.execute(f"SELECT owner FROM t WHERE {condition}", values)]
    assert found == [one for one in owners if caller.may_see(one)]


def test_an_owner_who_has_no_key_any_more_keeps_what_is_under_way_apart() -> None:
    callers = Callers.of(HttpConfig(api_key=ALICE))
    assert callers.of_owner("alice") == Caller("alice", "shared")
    assert callers.of_owner("bob") == Caller("bob", "own")
    assert callers.of_owner("") == Caller("", "shared")
    assert Callers.of(HttpConfig(api_key=(ALICE, BOB))).of_owner("") == Caller("", "own")
    assert Callers.of(HttpConfig()).of_owner("alice") == Caller("alice", "all")
