"""Batches for tests: files of lines, and what came of them."""

import json
import time
from collections.abc import Iterable
from typing import Any

import openai
from openai.types import Batch

from tests.fake_engine import MODEL

ENDED = ("completed", "failed", "expired", "cancelled")


def chat_line(number: int, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    """A good line; `custom_id` is "line-NUMBER"."""
    message = {"role": "user", "content": f"hi {number}"}
    full = {"model": MODEL, "messages": [message], "max_tokens": 3} | body
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": full}


def jsonl(lines: Iterable[dict[str, Any] | str]) -> bytes:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()


def submit(client: openai.OpenAI, content: bytes, **fields: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=file.id, **asked)


def wait_for(client: openai.OpenAI, batch_id: str, *statuses: str, seconds: float = 20.0) -> Batch:
    """Until it has one of these statuses; default: until it has ended."""
    deadline = time.monotonic() + seconds
    while (batch := client.batches.retrieve(batch_id)).status not in (statuses or ENDED):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    return batch


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def both(client: openai.OpenAI, batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of the output file and of the error file."""
    return results(client, batch.output_file_id), results(client, batch.error_file_id)
