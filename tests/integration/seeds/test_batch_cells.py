"""The batch cells: 2 requests that are waited for, 20 and 100 that are looked at, 500 and 5,000 that are cancelled.

As the documents have them, but for the sleeps and for max_tokens (500 there): the tests' model would take long for it.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from palladio.utils import print_highlight
from tests.integration.serving import MODEL

URLS = {"/chat/completions": "/v1/chat/completions", "/completions": "/v1/completions"}


def test_two_requests(client: openai.Client, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    requests = [
        {
            "custom_id": "request-1",
            "method": "POST",
            "url": "/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": "Tell me a joke about programming"}],
                "max_tokens": 50,
            },
        },
        {
            "custom_id": "request-2",
            "method": "POST",
            "url": "/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": "What is Python?"}],
                "max_tokens": 50,
            },
        },
    ]
    input_file_path = tmp_path / "batch_requests.jsonl"
    with open(input_file_path, "w") as f:
        for req in requests:
            f.write(json.dumps(req) + "\n")
    with open(input_file_path, "rb") as f:
        file_response = client.files.create(file=f, purpose="batch")
    batch_response = client.batches.create(
        input_file_id=file_response.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    print_highlight(f"Batch job created with ID: {batch_response.id}")
    assert batch_response.status == "validating"
    while batch_response.status not in ["completed", "failed", "cancelled"]:
        time.sleep(0.1)
        print(f"Batch job status: {batch_response.status}...trying again in 3 seconds...")
        batch_response = client.batches.retrieve(batch_response.id)
    assert batch_response.status == "completed"
    print("Batch job completed successfully!")
    print(f"Request counts: {batch_response.request_counts}")
    result_file_id = batch_response.output_file_id
    assert result_file_id is not None
    content = client.files.content(result_file_id)
    result_content = content.read().decode("utf-8")
    results = [json.loads(line) for line in result_content.split("\n") if line.strip() != ""]
    for result in results:
        print_highlight(f"Request {result['custom_id']}:")
        print_highlight(f"Response: {result['response']}")
    assert {result["custom_id"] for result in results} == {"request-1", "request-2"}
    for result in results:
        assert result["response"]["status_code"] == 200
        check_body(result["response"]["body"], 50)
    print_highlight("Cleaning up files...")
    assert client.files.delete(result_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(result_file_id)
    assert "Request counts: BatchRequestCounts(completed=2, failed=0, total=2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ("/chat/completions", 20),
        pytest.param("/chat/completions", 100, marks=pytest.mark.slow),
        ("/completions", 20),
    ],
)
def test_details_while_it_runs(client: openai.Client, tmp_path: Path, url: str, count: int) -> None:
    batch_job = start(client, tmp_path, url, count, max_tokens=16)
    print_highlight(f"Created batch job with ID: {batch_job.id}")
    print_highlight(f"Initial status: {batch_job.status}")
    seen = []
    max_checks = 1000
    for i in range(max_checks):
        batch_details = client.batches.retrieve(batch_id=batch_job.id)
        counts = batch_details.request_counts
        assert counts is not None
        print_highlight(
            f"Batch job details (check {i + 1} / {max_checks}) // ID: {batch_details.id} // Status: "
            f"{batch_details.status} // Created at: {batch_details.created_at} // Input file ID: "
            f"{batch_details.input_file_id} // Output file ID: {batch_details.output_file_id}"
        )
        print_highlight(
            f"<strong>Request counts: Total: {counts.total} // Completed: {counts.completed} // Failed: "
            f"{counts.failed}</strong>"
        )
        seen.append(counts.completed)
        if batch_details.status == "completed":
            break
        time.sleep(0.05)
    assert (seen[-1], counts.total, counts.failed) == (count, count, 0)
    assert seen == sorted(seen), "the counts are live and never go back"
    assert batch_details.output_file_id is not None
    lines = client.files.content(batch_details.output_file_id).text.splitlines()
    results = [json.loads(line) for line in lines]
    assert sorted(result["custom_id"] for result in results) == sorted(f"request-{i}" for i in range(count))
    for result in results:
        check_body(result["response"]["body"], 16)


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_cancel(client: openai.Client, tmp_path: Path, count: int) -> None:
    batch_job = start(client, tmp_path, "/chat/completions", count, max_tokens=100)
    wait_until(lambda: completed(client, batch_job) > 0, "some lines have run")
    begun = time.monotonic()
    cancelled_job = client.batches.cancel(batch_id=batch_job.id)
    answered = time.monotonic() - begun
    print_highlight(f"Cancellation initiated. Status: {cancelled_job.status}")
    assert cancelled_job.status == "cancelling"
    while cancelled_job.status not in ["failed", "cancelled"]:
        time.sleep(0.1)
        cancelled_job = client.batches.retrieve(batch_job.id)
        print_highlight(f"Current status: {cancelled_job.status}")
    assert cancelled_job.status == "cancelled"
    assert answered < 5
    assert time.monotonic() - begun < 20
    print_highlight("Batch job successfully cancelled")
    counts, output = cancelled_job.request_counts, cancelled_job.output_file_id
    assert counts is not None
    assert output is not None
    assert 0 < counts.completed < count
    assert len(client.files.content(output).text.splitlines()) == counts.completed, "what had been done is kept"
    del_response = client.files.delete(batch_job.input_file_id)
    assert del_response.deleted
    print_highlight("Successfully cleaned up input file")


def test_the_input_may_go_while_it_runs(client: openai.Client, tmp_path: Path) -> None:
    batch_job = start(client, tmp_path, "/chat/completions", 40, max_tokens=16)
    assert client.files.delete(batch_job.input_file_id).deleted
    wait_until(lambda: client.batches.retrieve(batch_job.id).status == "completed", "it has run")
    assert completed(client, batch_job) == 40


def start(client: openai.Client, folder: Path, url: str, count: int, *, max_tokens: int) -> Batch:
    requests: list[dict[str, Any]] = []
    for i in range(count):
        question = "Write a detailed story about topic. Make it very long."
        messages = [
            {"role": "system", "content": f"{i}: You are a helpful AI assistant"},
            {"role": "user", "content": question},
        ]
        content = {"messages": messages} if url == "/chat/completions" else {"prompt": f"{i}: {question}"}
        requests.append(
            {
                "custom_id": f"request-{i}",
                "method": "POST",
                "url": url,
                "body": {"model": MODEL, **content, "max_tokens": max_tokens},
            }
        )
    input_file_path = folder / "batch_requests.jsonl"
    with open(input_file_path, "w") as f:
        for req in requests:
            f.write(json.dumps(req) + "\n")
    with open(input_file_path, "rb") as f:
        uploaded_file = client.files.create(file=f, purpose="batch")
    return client.batches.create(
        input_file_id=uploaded_file.id,
        endpoint=URLS[url],  # type: ignore[arg-type]
        completion_window="24h",
    )


def completed(client: openai.Client, batch: Batch) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    return 0 if counts is None else counts.completed


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def check_body(body: dict[str, Any], max_tokens: int) -> None:
    """A whole answer of its route; `choices` is a list."""
    assert body["object"] in ("chat.completion", "text_completion")
    (choice,) = body["choices"]
    assert choice["finish_reason"] in ("stop", "length")
    assert 0 < body["usage"]["completion_tokens"] <= max_tokens
    if "message" in choice:
        message = choice["message"]
        assert message["content"] is not None or message["reasoning_content"]  # random tokens may begin to think
    else:
        assert choice["text"] is not None
