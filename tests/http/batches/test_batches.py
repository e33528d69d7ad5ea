"""/v1/batches over HTTP, with the openai SDK."""

import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import OverloadedError
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import both, chat_line, jsonl, results, submit, wait_for
from tests.http.conftest import Serve, running_server, wait_until

IDS = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


@pytest.fixture
def slow(engine: FakeEngine) -> FakeEngine:
    """An engine that answers nothing for a while."""
    engine.first_delay = 60.0
    return engine


def test_a_batch_from_upload_to_results(client: openai.OpenAI, engine: FakeEngine) -> None:
    content = jsonl([chat_line(0), "", chat_line(2, url="/chat/completions"), chat_line(3, n=2)])
    batch = submit(client, content, metadata={"job": "nightly"})
    assert (batch.status, batch.object, batch.endpoint) == ("validating", "batch", "/v1/chat/completions")
    assert batch.expires_at == batch.created_at + 24 * 3600
    assert (batch.output_file_id, batch.errors, batch.request_counts.total) == (None, None, 0)
    batch = wait_for(client, batch.id)
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"job": "nightly"}, MODEL)
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 3, 0)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.failed_at is batch.cancelled_at is batch.expired_at is batch.error_file_id is None
    found = results(client, batch.output_file_id)
    assert [one["custom_id"] for one in found] == ["line-0", "line-2", "line-3"]
    for one in found:
        assert one.keys() == {"id", "custom_id", "response", "error"}
        assert one["id"].startswith("batch_req_")
        assert one["error"] is None
        assert one["response"].keys() == {"status_code", "request_id", "body"}
        assert one["response"]["status_code"] == 200
        ChatCompletion.model_validate(one["response"]["body"], strict=True)
    usages = [one["response"]["body"]["usage"] for one in found]
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages) == 12
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
    assert batch.usage.input_tokens_details.cached_tokens == 3 * 3
    assert batch.usage.output_tokens_details.reasoning_tokens == 0
    output = client.files.retrieve(batch.output_file_id)
    assert output.id.startswith("backend_result_file-")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert all(call.options.background for call in engine.calls)
    metrics = str(client.base_url).replace("/v1/", "/metrics")
    wait_until(lambda: f'palladio:live_batches{{model_name="{MODEL}"}} 0.0' in httpx.get(metrics).text)
    assert f'palladio:batch_lines_total{{model_name="{MODEL}",result="completed"}} 3.0' in httpx.get(metrics).text
    client.files.delete(batch.output_file_id)
    assert client.batches.retrieve(batch.id).output_file_id == batch.output_file_id


def test_completions_and_other_ways_to_name_the_endpoint(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
    urls = ("/v1/completions", "/completions", "http://127.0.0.1:30000/v1/completions?x=1")
    lines = [{"custom_id": url, "method": "POST", "url": url, "body": body} for url in urls]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint="/completions").id)
    assert batch.endpoint == "/v1/completions"
    output, errors = both(client, batch)
    assert [one["custom_id"] for one in output] == list(urls)
    assert errors == []
    assert {one["response"]["body"]["object"] for one in output} == {"text_completion"}


@pytest.mark.parametrize(("names", "failed"), [((MODEL,), 7), ((MODEL, "*"), 0)])
def test_lines_that_name_other_models_are_told_of_once(
    serve: Serve, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], failed: int
) -> None:
    client = openai.OpenAI(base_url=f"{serve(served_model_name=names)}/v1", api_key="none", max_retries=0)
    given = [MODEL, "default", *(f"gpt-{number}" for number in range(7))]
    content = jsonl(chat_line(number, model=name) for number, name in enumerate(given))
    batch = wait_for(client, submit(client, content).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(given) - failed, failed)
    (told,) = [record.getMessage() for record in caplog.records if "other models" in record.getMessage()]
    assert "7 lines name other models ('gpt-0', 'gpt-1', 'gpt-2', 'gpt-3', 'gpt-4')" in told
    assert ("a 404" in told, f"{MODEL} answers them" in told) == (bool(failed), not failed)


def test_responses(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 20}
    bodies = [body | {"store": True}, body | {"background": True}, body | {"previous_response_id": "resp_none"}]
    bodies += [body | {"max_output_tokens": 10**6}]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/responses", "body": body}
        for number, body in enumerate(bodies)
    ]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint="/v1/responses").id)
    (good,), bad = both(client, batch)
    response = Response.model_validate(good["response"]["body"])
    assert response.output_text
    assert client.responses.retrieve(response.id).output_text == response.output_text
    assert [one["response"]["status_code"] for one in bad] == [400, 404, 400]
    error = bad[2]["response"]["body"]["error"]
    assert (error["param"], error["message"].split()[0]) == ("max_output_tokens", "max_output_tokens")
    assert batch.usage is not None
    assert batch.usage.input_tokens == response.usage.input_tokens


def test_a_batch_of_responses_leaves_stored_conversations_alone(serve: Serve) -> None:
    client = openai.OpenAI(base_url=serve(max_stored_responses=10) + "/v1", api_key="None", max_retries=0, timeout=20)
    mine = client.responses.create(model=MODEL, input="remember me", max_output_tokens=16)
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 16}
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/responses", "body": body} for n in range(20)]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint="/v1/responses").id)
    output, errors = both(client, batch)
    assert (len(output), errors) == (20, [])
    assert not any(one["response"]["body"]["store"] for one in output)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(output[0]["response"]["body"]["id"])
    client.responses.create(model=MODEL, input="again", max_output_tokens=16, previous_response_id=mine.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/nonsense"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: "x"}}, "metadata"),
        ({"metadata": {"x": "x" * 513}}, "metadata"),
        ({"metadata": {"x": 5}}, "metadata.x"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"input_file_id": None}, "input_file_id"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    good = {"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = http.post("/v1/batches", json=good | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_unknown_files_and_files_for_something_else(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h"}
    with pytest.raises(openai.NotFoundError) as missing:
        client.batches.create(input_file_id="input_file_id", **fields)
    assert (missing.value.code, missing.value.param) == ("file_not_found", "input_file_id")
    other = client.files.create(file=("a", b"x"), purpose="vision")
    with pytest.raises(openai.BadRequestError, match="purpose") as wrong:
        client.batches.create(input_file_id=other.id, **fields)
    assert wrong.value.param == "input_file_id"
    assert client.batches.list().data == []


def test_unknown_batches(client: openai.OpenAI) -> None:
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            call("batch_id")
        assert caught.value.code == "batch_not_found"


def test_cancel_at_once_with_what_is_done(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda prompt_ids, index: "done"
    engine.delay = 0.03
    batch = submit(client, jsonl(chat_line(number, max_tokens=20) for number in range(5000)))
    wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, 20)
    begun = time.monotonic()
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait_for(client, batch.id)
    assert time.monotonic() - begun < 10  # some hundred milliseconds, on a machine that is free
    assert (batch.status, batch.request_counts.total) == ("cancelled", 5000)
    assert batch.cancelled_at >= batch.cancelling_at
    output, errors = both(client, batch)
    assert len(output) == batch.request_counts.completed > 0
    assert (batch.request_counts.failed, batch.request_counts.model_extra) == (
        0,
        {"cancelled": len(errors)},
    )
    assert len({one["custom_id"] for one in output + errors}) == 5000
    assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
    wait_until(lambda: not engine._running)
    with pytest.raises(openai.ConflictError, match="it is cancelled") as caught:
        client.batches.cancel(batch.id)
    assert caught.value.code == "batch_ended"


def test_cancel_while_it_is_validated(client: openai.OpenAI, slow: FakeEngine) -> None:
    batch = submit(client, jsonl(chat_line(number) for number in range(20_000)))
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait_for(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 0)
    assert batch.in_progress_at is None
    assert batch.output_file_id is batch.error_file_id is None


def test_cancel_with_an_empty_body_of_json(http: httpx.Client, slow: FakeEngine) -> None:
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="None")
    batch = submit(client, jsonl([chat_line(1)]))
    answer = http.post(f"/v1/batches/{batch.id}/cancel", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")
    assert wait_for(client, batch.id).status == "cancelled"


def test_a_completed_batch_cannot_be_cancelled(client: openai.OpenAI) -> None:
    batch = wait_for(client, submit(client, jsonl([chat_line(1)])).id)
    with pytest.raises(openai.ConflictError, match="it is completed"):
        client.batches.cancel(batch.id)


def test_the_window_ends(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.first_delay = 0.2
    engine.reply = lambda prompt_ids, index: "x"
    engine.delay = 0.002
    batch = submit(client, jsonl(chat_line(number) for number in range(3000)), completion_window="2s")
    assert batch.expires_at == batch.created_at + 2
    batch = wait_for(client, batch.id)
    assert (batch.status, batch.request_counts.total) == ("expired", 3000)
    assert batch.expired_at is not None
    assert batch.completed_at is None
    output, errors = both(client, batch)
    assert len(output) == batch.request_counts.completed
    assert {one["error"]["code"] for one in errors} == {"batch_expired"}
    assert (batch.request_counts.failed, batch.request_counts.model_extra["expired"]) == (0, len(errors))
    assert len(output) + len(errors) == len({one["custom_id"] for one in output + errors}) == 3000


def test_the_input_file_may_be_deleted_while_it_runs(engine: FakeEngine, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    engine.delay = 0.05
    with running_server(engine, HttpConfig(), storage=storage) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="None")
        batch = submit(client, jsonl(chat_line(number) for number in range(300)))
        assert client.files.delete(batch.input_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(batch.input_file_id)
        assert (storage.files / batch.input_file_id).exists()
        batch = wait_for(client, batch.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 300)
        wait_until(lambda: [path.name for path in storage.files.iterdir()] == [batch.output_file_id])


def test_result_files_expire_if_asked_to(client: openai.OpenAI) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    batch = submit(client, jsonl([chat_line(1), "bad"]), output_expires_after=expiry)
    batch = wait_for(client, batch.id)
    for file_id in (batch.output_file_id, batch.error_file_id):
        file = client.files.retrieve(file_id)
        assert file.expires_at == file.created_at + 7200


def test_lists(client: openai.OpenAI) -> None:
    ids = [submit(client, jsonl([chat_line(number)])).id for number in range(5)]
    page = client.batches.list(limit=2)
    assert [batch.id for batch in page.data] == ids[:-3:-1]
    assert page.has_more
    assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]
    for query in ({"limit": 0}, {"limit": 101}, {"after": "after"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.batches.list(**query)
        assert caught.value.param == next(iter(query))
    for batch_id in ids:
        wait_for(client, batch_id)


def test_a_full_queue_and_an_engine_that_is_away_only_delay_it(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.refuse = OverloadedError("the queue is full", retry_after=0.05)
    batch = submit(client, jsonl([chat_line(1), chat_line(2)]))
    wait_for(client, batch.id, "in_progress")
    time.sleep(0.2)
    engine.state = "restarting"
    engine.refuse = None
    time.sleep(0.3)
    assert client.batches.retrieve(batch.id).request_counts.completed == 0
    engine.state = "ready"
    batch = wait_for(client, batch.id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 0)


def test_no_more_lines_than_the_engine_can_use_are_with_it(client: openai.OpenAI, engine: FakeEngine) -> None:
    most = 0
    reply = engine.reply

    def counting(prompt_ids: list[int], index: int) -> str:
        nonlocal most
        most = max(most, len(engine._running))
        return str(reply)

    engine.reply = counting
    engine.first_delay = 0.5
    batches = [submit(client, jsonl(chat_line(number) for number in range(200))) for _ in range(2)]
    done = [wait_for(client, batch.id) for batch in batches]
    assert [batch.request_counts.completed for batch in done] == [200, 200]
    assert 64 < most <= 2 * engine.info.max_running_requests
    assert abs(done[0].completed_at - done[1].completed_at) <= 1  # they took turns
