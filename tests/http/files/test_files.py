"""/v1/files, with the openai SDK where it goes that far: what is kept, what is refused, what vanishes."""

import socket
from pathlib import Path

import httpx
import openai
import pytest

from palladio.http.storage.storage import Storage
from tests.http.conftest import OpenStorage, wait_until
from tests.http.files.uploads import CONTENT, names, upload


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


def test_it_outlives_a_restart_and_its_id_is_its_only_name_on_the_disk(
    start, storage: Storage, open_storage: OpenStorage
) -> None:
    http = start(storage)
    file = upload(http, name="../../etc/passwd").raise_for_status().json()
    assert file["filename"] == "passwd"
    assert names(storage) == {file["id"]}
    storage.close()
    http = start(open_storage(storage.folder))
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
