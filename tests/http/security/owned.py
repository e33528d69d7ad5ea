"""Keys of several owners, and what is made with them."""

from typing import Any

import httpx

from tests.http.batches.batch_files import chat_line, jsonl

ALICE, BOB = "alice:alices-key", "bob:bobs-key-1"
KEYS = {"alice": "alices-key", "bob": "bobs-key-1", "admin": "admins-key"}  # what each sends

# Ids of objects that there are not.
FILE = "backend_input_file-01890000-0000-7000-8000-000000000000"
BATCH, RESPONSE = "batch_01890000-0000-7000-8000-000000000000", "resp_01890000-0000-7000-8000-000000000000"


def client_of(url: str, key: str | None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, timeout=20, verify=False)


def upload(client: httpx.Client, name: str = "a.jsonl") -> str:
    content = jsonl([chat_line(1)])
    return client.post("/v1/files", data={"purpose": "batch"}, files={"file": (name, content)}).json()["id"]


def new_batch(client: httpx.Client) -> str:
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": upload(client)}
    return client.post("/v1/batches", json=body).json()["id"]


def new_response(client: httpx.Client, **fields: Any) -> str:
    return client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 3} | fields).json()["id"]


def new_item(client: httpx.Client) -> str:
    """An item of a stored response."""
    return client.get(f"/v1/responses/{new_response(client)}/input_items").json()["data"][0]["id"]


def new_request(client: httpx.Client) -> str:
    return client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).json()["id"]


def batch_of(file_id: str) -> dict[str, str]:
    return {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": file_id}
