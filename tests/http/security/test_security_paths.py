"""What clients name never leads out of the folders that are for it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import Storage
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server

CANARY = "canary-5f3a"
UP = [
    "../canary",
    "../../canary",
    "..%2fcanary",
    "%2e%2e%2fcanary",
    "%2e%2e/canary",
    "..%252fcanary",
    "..%5ccanary",
    "%2fetc%2fpasswd",
    "file-x%00",
    "file-x%0a",
    "palladio.db",
    "..%2fpalladio.db",
    "..%2flock",
    "%2e%2e",
]
ROUTES = [
    ("GET", "/v1/files/{}"),
    ("GET", "/v1/files/{}/content"),
    ("DELETE", "/v1/files/{}"),
    ("GET", "/v1/batches/{}"),
    ("POST", "/v1/batches/{}/cancel"),
    ("GET", "/v1/responses/{}"),
    ("DELETE", "/v1/responses/{}"),
    ("GET", "/v1/models/{}"),
    ("GET", "/v1/requests/{}/explain"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "storage"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "canary").write_text(CANARY)
    return folder


@pytest.fixture
def client(engine: FakeEngine, folder: Path) -> Iterator[httpx.Client]:
    told = ObservabilityConfig(profile_folder=str(folder / "profiles"), log_requests=True, log_requests_level=3)
    with (
        running_server(engine, HttpConfig(), told, storage=Storage(folder)) as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


def snapshot(folder: Path) -> set[Path]:
    return {path for path in folder.parent.rglob("*") if path.is_file() and "palladio.db" not in path.name}


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_ids_in_urls(client: httpx.Client, folder: Path, method: str, route: str) -> None:
    before = snapshot(folder)
    for written in UP:
        url = httpx.URL(str(client.base_url)).copy_with(raw_path=route.format(written).encode())
        answer = client.request(method, url)
        assert answer.status_code in (307, 400, 404, 405), written
        assert CANARY not in answer.text
        assert "root:" not in answer.text
        assert "Traceback" not in answer.text
    assert snapshot(folder) == before


def test_ids_in_bodies(client: httpx.Client, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = snapshot(folder)
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    for name in ("../canary", "../../canary", "/etc/passwd", "a/b", "x\x00y", "..", "x\nforged line"):
        answers = [
            client.post("/v1/batches", json=batch | {"input_file_id": name}),
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "rid": name}),
            client.post("/v1/completions", json={"prompt": "x", "model": name}),
            client.post("/v1/responses", json={"input": "x", "previous_response_id": name}),
            client.post("/start_profile", json={"output_dir": f"../../{name}"}),
            client.post(
                "/v1/completions",
                json={"prompt": "x"},
                headers={"x-request-id": name.replace("\x00", "").replace("\n", "")},
            ),
        ]
        statuses = [answer.status_code for answer in answers]
        assert statuses[0] in (400, 404), answers[0].text
        assert statuses[2:5] == [404, statuses[3], 400]
        assert statuses[3] in (400, 404)
        assert not any(CANARY in answer.text or "root:" in answer.text for answer in answers)
    assert snapshot(folder) == before


def test_names_of_uploaded_files(client: httpx.Client, folder: Path) -> None:
    before = snapshot(folder)
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
    for name in ("../../canary", "/etc/passwd", "..\\canary", "a/b.jsonl", ".", ".."):
        answer = client.post("/v1/files", files={"file": (name, line)}, data={"purpose": "batch"})
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            content = client.get(f"/v1/files/{answer.json()['id']}/content")
            assert content.content == line
            assert content.headers["x-content-type-options"] == "nosniff"
            assert not content.headers["content-type"].startswith("text/html")
    assert (folder / "canary").read_text() == (folder.parent / "canary").read_text() == CANARY
    assert all(path.parent == folder / "files" for path in snapshot(folder) - before)
