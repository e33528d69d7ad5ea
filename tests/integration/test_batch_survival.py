"""Batches outlive their server, however it ends: no line is lost, none is answered twice."""

import collections
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.serving import MODEL, Server

NUM_LINES = 60
TOO_HOT = 7  # the number of a bad line
ENDED = ("completed", "failed", "expired", "cancelled")


def start_batch(server: Server) -> str:
    lines = []
    for number in range(NUM_LINES):
        body = {"model": MODEL, "prompt": f"{number}:", "max_tokens": 24, "ignore_eos": True}
        if number == TOO_HOT:
            body["temperature"] = -1.0
        lines.append({"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body})
    with server.client() as client:
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        return client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"of": "a test"}
        ).id


def wait_for_lines(server: Server, batch_id: str, count: int) -> None:
    with server.client() as client:
        while True:
            counts = client.batches.retrieve(batch_id).request_counts
            assert counts is not None
            if counts.completed + counts.failed >= count:
                return
            time.sleep(0.02)


def results(server: Server, batch_id: str) -> dict[str, list[str]]:
    """The lines of both files when the batch has ended, by the numbers that they answer."""
    deadline = time.monotonic() + 120
    with server.client() as client:
        while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (batch.status, batch.metadata) == ("completed", {"of": "a test"})
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        return {
            name: [json.loads(line)["custom_id"] for line in client.files.content(file_id).text.splitlines()]
            for name, file_id in (("output", batch.output_file_id), ("errors", batch.error_file_id))
        }


@pytest.mark.slow
def test_it_goes_on_with_the_next_server(launch: Launch, tmp_path: Path) -> None:
    flags = f"--served-model-name {MODEL} --compile lazy --file-storage-path {tmp_path / 'storage'}"
    server = launch(flags)
    batch_id = start_batch(server)
    wait_for_lines(server, batch_id, NUM_LINES // 4)
    os.killpg(server.process.pid, signal.SIGKILL)  # of the engine too
    server.process.wait(30)
    server = launch(flags)
    wait_for_lines(server, batch_id, NUM_LINES // 2)
    begun = time.monotonic()
    server.process.terminate()
    server.process.wait(30)
    assert time.monotonic() - begun < 20, "whoever ends a server does not wait for batches"
    server = launch(flags)
    found = results(server, batch_id)
    assert found["errors"] == [str(TOO_HOT)]
    answered = collections.Counter(found["output"])
    assert set(answered) == {str(number) for number in range(NUM_LINES)} - {str(TOO_HOT)}
    assert set(answered.values()) == {1}
    server.check_clean()


@pytest.mark.slow
def test_it_goes_on_with_the_next_engine(launch: Launch) -> None:
    server = launch(f"--served-model-name {MODEL} --compile lazy")
    batch_id = start_batch(server)
    wait_for_lines(server, batch_id, NUM_LINES // 4)
    os.kill(server.engine_pid(), signal.SIGKILL)
    found = results(server, batch_id)
    assert sorted(map(int, found["output"] + found["errors"])) == list(range(NUM_LINES))
    assert found["errors"] == [str(TOO_HOT)]
