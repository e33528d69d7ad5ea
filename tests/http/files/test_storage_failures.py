"""Disks and databases that are full, broken or gone: what /v1/files says, what it leaves, what it tidies up."""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import sqlite3

import pytest

from palladio.http.files import file_store
from palladio.http.storage.blobs import blob_folder
from palladio.http.storage.storage import Storage
from tests.fake_engine import FakeEngine
from tests.http.conftest import OpenStorage, wait_until
from tests.http.files.uploads import CONTENT, names, start_work, upload


@pytest.fixture
def open_storage() -> OpenStorage:
    """With a database of its own: these tests lay hands on its file."""
    return Storage


def change(storage: Storage, statement: str, *values: object) -> None:
    """Behind the server's back."""
    with contextlib.closing(sqlite3.connect(storage.folder / "palladio.db")) as connection, connection:
        connection.execute(statement, values)


def test_a_full_disk_is_a_507_and_leaves_nothing(start, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    http = start(storage)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for method in ("write", "seal"):
        with monkeypatch.context() as patch:
            patch.setattr(blob_folder._NewFile, method, full)
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
    assert "are gone from the server's storage: upload it again" in error["message"]
    assert http.get(f"/v1/files/{lost}").status_code == 200
    assert http.delete(f"/v1/files/{lost}").json()["deleted"]
    assert http.get(f"/v1/files/{lost}/content").json()["error"]["code"] == "file_not_found"


def test_an_upload_that_is_deleted_under_way_is_a_503(start, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    http = start(storage)
    seal = blob_folder._NewFile.seal

    def seal_nothing(new: blob_folder._NewFile) -> None:
        shutil.rmtree(storage.files)
        seal(new)

    monkeypatch.setattr(blob_folder._NewFile, "seal", seal_nothing)
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

    def refuse(new: blob_folder._NewFile) -> None:
        raise OSError(number, os.strerror(number), str(storage.files / "x"))

    monkeypatch.setattr(blob_folder._NewFile, "seal", refuse)
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
    start, storage: Storage, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    http = start(storage)
    file = upload(http).json()
    start_work(http)
    (storage.folder / "palladio.db").unlink()
    num_calls = len(engine.calls)
    answers = [
        http.get("/v1/files"),
        upload(http),
        http.get(f"/v1/files/{file['id']}"),
        http.get(f"/v1/files/{file['id']}/content"),
        http.delete(f"/v1/files/{file['id']}"),
        http.get("/v1/batches"),
        http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_gone"), answer.request.url
    assert len(engine.calls) == num_calls, "tokens were made for a response that cannot be stored"
    assert re.search(r'palladio:database_failures_total\{.*code="storage_gone".* [1-9]', http.get("/metrics").text)
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
