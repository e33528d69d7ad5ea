"""/v1/files, with the openai SDK where it goes that far: what is kept, what is refused, what vanishes."""

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.http.files import file_store
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server, wait_until

CONTENT = b'{"a": 1}\n' * 1000


def upload(http: httpx.Client, content: bytes = CONTENT, name: str = "a.jsonl", **fields: Any) -> httpx.Response:
    return http.post("/v1/files", files={"file": (name, content)}, data={"purpose": "batch"} | fields)


def names(storage: Storage) -> set[str]:
    return {path.name for path in storage.files.iterdir()}


def start_work(http: httpx.Client) -> None:
    """What `serve` does at its start, and other servers with their first batch."""
    body = {"input_file_id": upload(http).json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    http.post("/v1/batches", json=body).raise_for_status()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Closed by the server that has it."""
    return Storage(tmp_path / "storage")


@pytest.fixture
def start(engine: FakeEngine) -> Iterator[Callable[..., httpx.Client]]:
    """Starts a server on a storage, and gives a client of it; the other arguments are HttpConfig's."""
    with contextlib.ExitStack() as stack:

        def run(storage: Storage, **config: Any) -> httpx.Client:
            url = stack.enter_context(running_server(engine, HttpConfig(**config), storage=storage))
            return stack.enter_context(httpx.Client(base_url=url, timeout=20))

        yield run


def change(storage: Storage, statement: str, *values: object) -> None:
    """Behind the server's back."""
    with contextlib.closing(sqlite3.connect(storage.folder / "palladio.db")) as connection, connection:
        connection.execute(statement, values)


def test_a_file_of_the_sdk_from_upload_to_deletion(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "batch_requests.jsonl"
    path.write_bytes(CONTENT)
    with path.open("rb") as opened:
        file = client.files.create(file=opened, purpose="batch")
    assert file.id.startswith("backend_input_file-")
    assert (file.filename, file.bytes, file.purpose) == ("batch_requests.jsonl", len(CONTENT), "batch")
    assert (file.object, file.status, file.expires_at) == ("file", "processed", None)
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == CONTENT
    assert [one.id for one in client.files.list()] == [file.id]
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="no such file") as caught:
            call(file.id)
        assert (caught.value.code, caught.value.param) == ("file_not_found", "file_id")
    assert client.files.list().data == []


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_500_000])
def test_every_byte_comes_back(http: httpx.Client, size: int) -> None:
    content = (b"\r\n--boundary\x00\xff-\r\n" * (size // 16 + 1))[:size]
    file = upload(http, content).raise_for_status().json()
    assert file["bytes"] == size
    answer = http.get(f"/v1/files/{file['id']}/content").raise_for_status()
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(size)


def test_it_outlives_a_restart_and_its_id_is_its_only_name_on_the_disk(start, storage: Storage) -> None:
    http = start(storage)
    file = upload(http, name="../../etc/passwd").raise_for_status().json()
    assert file["filename"] == "passwd"
    assert names(storage) == {file["id"]}
    storage.close()
    http = start(Storage(storage.folder))
    assert http.get(f"/v1/files/{file['id']}").json() == file
    assert http.get(f"/v1/files/{file['id']}/content").content == CONTENT


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("..\\..\\evil.jsonl", "evil.jsonl"),
        ("a\x1b[31m\x9bb\u2028c.jsonl", "a[31mbc.jsonl"),
        ('wörld "🎉".jsonl', "wörld %22🎉%22.jsonl"),
        ("..", "upload"),
        ("/", "upload"),
    ],
)
def test_names_are_only_shown(http: httpx.Client, name: str, shown: str) -> None:
    file = upload(http, name=name).raise_for_status().json()
    assert file["filename"] == shown
    header = http.get(f"/v1/files/{file['id']}/content").headers["content-disposition"]
    assert header.isascii()
    assert header.isprintable()
    assert header.startswith("attachment; filename*=utf-8''")


@pytest.mark.parametrize("path", ["..%2fpalladio.db", "../palladio.db", "%2e%2e/lock", "x" * 5000, "a%00b"])
def test_a_path_for_an_id_is_a_404(http: httpx.Client, path: str) -> None:
    for suffix in ("", "/content"):
        answer = http.get(f"/v1/files/{path}{suffix}")
        assert answer.status_code == 404
    assert http.delete(f"/v1/files/{path}").status_code == 404


@pytest.mark.parametrize("purpose", ["assistants", "fine-tune", "vision", "user_data", "evals"])
def test_other_purposes_are_kept_as_such(http: httpx.Client, purpose: str) -> None:
    assert upload(http, purpose=purpose).json()["purpose"] == purpose


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "batch_output"}, "purpose"),
        ({"purpose": "nonsense"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"purpose": "x" * 2000}, "purpose"),
        ({"color": "red"}, "color"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e6"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"}, "expires_after[seconds]"),
        ({"purpose": ["batch", "batch"]}, "purpose"),
    ],
)
def test_wrong_fields_are_named_and_nothing_is_kept(start, storage: Storage, fields: dict, param: str) -> None:
    answer = upload(start(storage), **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert names(storage) == set()


def test_forms_that_are_none(start, storage: Storage) -> None:
    http = start(storage)
    assert http.post("/v1/files", json={"file": "x"}).status_code == 415
    assert http.post("/v1/files", headers={"content-type": "multipart/form-data"}).status_code == 400
    no_file = http.post("/v1/files", files={"purpose": (None, "batch")})
    assert (no_file.status_code, no_file.json()["error"]["param"]) == (400, "file")
    twice = http.post("/v1/files", files=[("file", ("a", b"a")), ("file", ("b", b"b"))], data={"purpose": "batch"})
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "file")
    assert upload(http, name="x" * 300).status_code == 400
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello'
    headers = {"content-type": "multipart/form-data; boundary=B"}
    for body in (form, b"garbage", b"", form + b"\r\n--B"):
        answer = http.post("/v1/files", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    too_long = {"content-type": f"multipart/form-data; boundary={'B' * 5000}"}
    assert http.post("/v1/files", content=form, headers=too_long).status_code == 400
    assert names(storage) == set()


@pytest.mark.parametrize("lines", [b"a: b\r\n" * 20, b"a: " + b"b" * 10_000 + b"\r\n", b"a: b\r\n" * 100_000])
def test_headers_of_a_part_are_bounded(start, storage: Storage, lines: bytes) -> None:
    http = start(storage)
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    form = head + lines + b"\r\n" + CONTENT + b"\r\n--x--\r\n"
    answer = http.post("/v1/files", content=form, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert not names(storage)


def test_a_file_without_a_name_and_a_purpose_after_it(http: httpx.Client) -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nhello\r\n'
        b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B--\r\n'
    )
    answer = http.post("/v1/files", content=form, headers={"content-type": "multipart/form-data; boundary=B"})
    assert (answer.json()["filename"], answer.json()["bytes"]) == ("upload", 5)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_file_is_refused_while_it_arrives(start, storage: Storage, chunked: bool) -> None:
    http = start(storage, max_file_bytes=100_000, max_request_bytes=1000)
    assert upload(http, b"x" * 100_000).status_code == 200
    (kept,) = names(storage)
    request = http.build_request("POST", "/v1/files", files={"file": ("a", b"x" * 200_000)}, data={"purpose": "batch"})
    if chunked:
        body = request.read()
        kind = {"content-type": request.headers["content-type"]}
        pieces = (body[start : start + 20_000] for start in range(0, len(body), 20_000))
        answer = http.post("/v1/files", content=pieces, headers=kind)
    else:
        answer = http.send(request)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert "--max-file-bytes" in answer.json()["error"]["message"]
    assert upload(http, b"x" * 100_001).status_code == 413
    assert names(storage) == {kept}


def test_a_client_that_goes_away_leaves_nothing(start, storage: Storage) -> None:
    http = start(storage)
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n"
        b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
    )
    begin = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 2_000_000
    with socket.create_connection((http.base_url.host, http.base_url.port)) as connection:
        connection.sendall(head + begin)
        wait_until(lambda: names(storage) != set())
    wait_until(lambda: names(storage) == set())
    assert http.get("/v1/files").json()["data"] == []


def test_a_full_disk_is_a_507_and_leaves_nothing(start, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    http = start(storage)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for method in ("write", "seal"):
        with monkeypatch.context() as patch:
            patch.setattr(file_store.NewFile, method, full)
            answer = upload(http)
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert names(storage) == set()
    assert upload(http).status_code == 200


def test_a_full_database_is_a_507_and_leaves_nothing(start, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    http = start(storage)
    insert = file_store.insert_file

    def into_a_full_one(connection: sqlite3.Connection, file: file_store.StoredFile) -> None:
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        try:
            connection.execute("CREATE TABLE filler AS SELECT zeroblob(1000000)")
            insert(connection, file)
        finally:
            connection.execute("PRAGMA max_page_count = 1000000")

    with monkeypatch.context() as patch:
        patch.setattr(file_store, "insert_file", into_a_full_one)
        answer = upload(http)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert names(storage) == set()
    assert upload(http).status_code == 200


def test_expired_files_vanish_with_their_contents(start, storage: Storage) -> None:
    http = start(storage)
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(http, **expiry).raise_for_status().json()
    assert file["expires_at"] == file["created_at"] + 3600
    change(storage, "UPDATE files SET expires_at = created_at - 1")
    assert http.get(f"/v1/files/{file['id']}").status_code == 404
    assert http.get(f"/v1/files/{file['id']}/content").status_code == 404
    assert http.get("/v1/files").json()["data"] == []
    storage.close()
    http = start(Storage(storage.folder))
    assert names(storage) == {file["id"]}
    start_work(http)
    wait_until(lambda: file["id"] not in names(storage))


def test_what_a_crash_left_is_removed_and_nothing_else(start, storage: Storage) -> None:
    http = start(storage)
    kept = upload(http).json()["id"]
    storage.close()
    orphan = "backend_result_file-01890000-0000-7000-8000-000000000000"
    for name in (orphan, f"{orphan}.part", "notes.txt"):
        (storage.files / name).write_text("x")
    http = start(Storage(storage.folder))
    start_work(http)
    assert {kept, "notes.txt"} <= names(storage)
    assert not {orphan, f"{orphan}.part"} & names(storage)


def test_lists_page_by_page(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{i}", b"x"), purpose="batch" if i % 2 else "vision").id for i in range(7)]
    page = client.files.list(limit=3)
    assert [file.id for file in page.data] == ids[:-4:-1]
    assert page.has_more
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == ids
    assert [file.id for file in client.files.list(purpose="vision", order="asc")] == ids[::2]
    assert client.files.list(purpose="other").data == []
    for file in client.files.list(limit=2):  # goes on after an id that is gone
        client.files.delete(file.id)
    assert client.files.list().data == []


def test_wrong_pages(http: httpx.Client) -> None:
    for query, param in (("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"), ("order=up", "order")):
        answer = http.get(f"/v1/files?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for after in ("after", "batch_01890000-0000-7000-8000-000000000000", "backend_input_file-01890000"):
        answer = http.get("/v1/files", params={"after": after})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert http.get("/v1/files").json() == empty


def test_a_folder_of_contents_that_is_deleted_is_made_anew(start, storage: Storage) -> None:
    http = start(storage)
    lost = upload(http).json()["id"]
    shutil.rmtree(storage.files)
    kept = upload(http).raise_for_status().json()["id"]
    assert storage.files.stat().st_mode & 0o777 == 0o700
    assert http.get(f"/v1/files/{kept}/content").content == CONTENT
    answer = http.get(f"/v1/files/{lost}/content")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "file_contents_gone", "file_id")
    assert "are gone from --file-storage-path: upload it again" in error["message"]
    assert http.get(f"/v1/files/{lost}").status_code == 200
    assert http.delete(f"/v1/files/{lost}").json()["deleted"]
    assert http.get(f"/v1/files/{lost}/content").json()["error"]["code"] == "file_not_found"


def test_an_upload_that_is_deleted_under_way_is_a_503(start, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    http = start(storage)
    seal = file_store.NewFile.seal

    def seal_nothing(new: file_store.NewFile) -> None:
        shutil.rmtree(storage.files)
        seal(new)

    monkeypatch.setattr(file_store.NewFile, "seal", seal_nothing)
    answer = upload(http)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
    assert http.get("/v1/files").json()["data"] == []
    monkeypatch.undo()
    upload(http).raise_for_status()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_a_503(
    start, storage: Storage, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    http = start(storage)

    def refuse(new: file_store.NewFile) -> None:
        raise OSError(number, os.strerror(number), str(storage.files / "x"))

    monkeypatch.setattr(file_store.NewFile, "seal", refuse)
    answer = upload(http)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "storage_unavailable")
    assert os.strerror(number) in error["message"]
    assert str(storage.folder) not in error["message"]
    assert names(storage) == set()
    told = [record for record in caplog.records if "--file-storage-path cannot be used" in record.getMessage()]
    assert len(told) == 1
    assert not any(record.exc_info for record in caplog.records)


def test_a_database_that_cannot_be_written_is_a_503(start, storage: Storage) -> None:
    http = start(storage)
    asyncio.run(storage.database.run(lambda connection: connection.execute("PRAGMA query_only = ON").fetchall()))
    answer = upload(http)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
    assert names(storage) == set()


def test_a_deleted_database_is_told_on_every_route_and_loses_nothing(
    start, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    http = start(storage)
    file = upload(http).json()
    start_work(http)
    (storage.folder / "palladio.db").unlink()
    answers = [
        upload(http),
        http.get("/v1/files"),
        http.get(f"/v1/files/{file['id']}"),
        http.get(f"/v1/files/{file['id']}/content"),
        http.delete(f"/v1/files/{file['id']}"),
        http.get("/v1/batches"),
        http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_gone"), answer.request.url
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert len([text for text in caplog.messages if "was deleted or replaced while the server ran" in text]) == 1
    storage.close()
    (saved,) = storage.folder.glob("palladio.db.saved-*")
    for left in storage.folder.glob("palladio.db-*"):
        left.unlink()
    saved.rename(storage.folder / "palladio.db")
    http = start(Storage(storage.folder))
    assert http.get(f"/v1/files/{file['id']}").json() == file
    assert http.get(f"/v1/files/{file['id']}/content").content == CONTENT
