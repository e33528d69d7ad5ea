"""Uploads of the tests of /v1/files."""

from typing import Any

import httpx

from palladio.http.storage.storage import Storage

CONTENT = b'{"a": 1}\n' * 1000


def upload(http: httpx.Client, content: bytes = CONTENT, name: str = "a.jsonl", **fields: Any) -> httpx.Response:
    return http.post("/v1/files", files={"file": (name, content)}, data={"purpose": "batch"} | fields)


def names(storage: Storage) -> set[str]:
    return {path.name for path in storage.files.iterdir()}


def start_work(http: httpx.Client) -> None:
    """Start the worker, as `serve` does at its start, and other servers with their first batch."""
    body = {"input_file_id": upload(http).json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    http.post("/v1/batches", json=body).raise_for_status()
