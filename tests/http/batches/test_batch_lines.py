"""Lines of a batch: what is wrong with one is an error of that line, and a file that is no batch fails the batch."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import orjson
import pytest

from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import both, chat_line, jsonl, results, submit, wait_for
from tests.http.conftest import Serve


@pytest.fixture
def of(serve: Serve) -> Iterator[Any]:
    """A client of a server with this HttpConfig."""
    clients: list[openai.OpenAI] = []

    def start(**config: Any) -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=serve(**config) + "/v1", api_key="None", max_retries=0, timeout=20))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


BAD_LINES: list[tuple[dict[str, Any] | str, str | None, str]] = [
    ("{nonsense", None, "invalid_json_line"),
    ('{"a": "\udcff"}', None, "invalid_json_line"),
    ("[1, 2]", None, "invalid_json_line"),
    ("[" * 3000, None, "invalid_json_line"),
    ({"method": "POST"}, None, "missing_required_parameter"),
    (chat_line(1) | {"method": None}, "line-1", "missing_required_parameter"),
    ({k: v for k, v in chat_line(2).items() if k != "body"}, "line-2", "missing_required_parameter"),
    (chat_line(3) | {"custom_id": 5}, None, "invalid_custom_id"),
    (chat_line(4) | {"custom_id": "x" * 513}, None, "invalid_custom_id"),
    (chat_line(5) | {"method": "GET"}, "line-5", "invalid_method"),
    (chat_line(6, url="/v1/completions"), "line-6", "mismatched_url"),
    (chat_line(7, url="http://[/v1/chat/completions"), "line-7", "mismatched_url"),
    (chat_line(8) | {"body": [1]}, "line-8", "invalid_body"),
    (chat_line(9, stream=True), "line-9", "unsupported_stream"),
    (chat_line(10) | {"extra": 1}, "line-10", "unknown_parameter"),
    (chat_line(100), "line-100", "duplicate_custom_id"),
]


def test_a_bad_line_is_an_error_of_its_own_and_never_fails_the_rest(client: openai.OpenAI) -> None:
    lines = [chat_line(100), *(line for line, _, _ in BAD_LINES), chat_line(101)]
    content = b"\xef\xbb\xbf" + "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode(
        "utf-8", "surrogateescape"
    )  # no newline at the end, a mark at the beginning
    batch = wait_for(client, submit(client, content).id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (len(lines), 2, len(BAD_LINES))
    output, errors = both(client, batch)
    assert [one["custom_id"] for one in output] == ["line-100", "line-101"]
    assert [(one["custom_id"], one["error"]["code"]) for one in errors] == [(name, code) for _, name, code in BAD_LINES]
    assert all(one["response"] is None for one in errors)
    assert all(f"line {number}" in one["error"]["message"] for number, one in enumerate(errors, start=2))
    assert client.files.retrieve(batch.error_file_id).purpose == "batch_output"


def test_what_the_route_refuses_is_in_the_error_file_as_the_route_says_it(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    bad: list[dict[str, Any]] = [{"model": "other"}, {"temperature": -1}, {"temprature": 1}, {"max_tokens": 10**6}]
    batch = submit(client, jsonl([chat_line(number, **body) for number, body in enumerate(bad)]))
    batch = wait_for(client, batch.id)
    assert (batch.status, batch.output_file_id) == ("completed", None)
    errors = results(client, batch.error_file_id)
    for number, (body, one) in enumerate(zip(bad, errors, strict=True)):
        with pytest.raises(openai.APIStatusError) as caught:
            client.post("/chat/completions", body=chat_line(number, **body)["body"], cast_to=object)
        assert one["error"] is None
        assert one["response"]["status_code"] == caught.value.status_code
        assert one["response"]["body"] == {"error": caught.value.body}


def test_a_field_without_effect_is_told_of_in_the_answer_of_its_line(client: openai.OpenAI) -> None:
    batch = wait_for(client, submit(client, jsonl([chat_line(0, xyzzy=1), chat_line(1)])).id)
    told, plain = sorted(results(client, batch.output_file_id), key=lambda line: str(line["custom_id"]))
    assert [warning["param"] for warning in told["response"]["body"]["warnings"]] == ["xyzzy"]
    assert "warnings" not in plain["response"]["body"]


def test_a_defect_in_one_line_is_a_500_of_that_line(
    client: openai.OpenAI, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.reply = lambda prompt_ids, index: str(1 / (len(prompt_ids) % 2))
    batch = wait_for(client, submit(client, jsonl([chat_line(1), chat_line(10)])).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (error,) = results(client, batch.error_file_id)
    assert (error["response"]["status_code"], error["response"]["body"]["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n \n\t\n", "empty_file"),
        (b"%PDF-1.7\n\x00\xff\n", "invalid_json_line"),
        (b"1\n2\n" * 4, "invalid_json_line"),
        (jsonl(chat_line(number) for number in range(11)), "too_many_lines"),
    ],
)
def test_a_file_that_is_no_batch_fails_it(of, content: bytes, code: str) -> None:
    client = of(max_batch_lines=10)
    batch = wait_for(client, submit(client, content).id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors.object == "list"
    assert {error.code for error in batch.errors.data} == {code}
    if code == "invalid_json_line":
        assert [error.line for error in batch.errors.data] == list(range(1, len(batch.errors.data) + 1))


def test_a_failed_batch_names_a_hundred_lines_at_most(client: openai.OpenAI) -> None:
    batch = wait_for(client, submit(client, b"x\n" * 700).id)
    assert [error.line for error in batch.errors.data] == list(range(1, 101))


def test_a_line_longer_than_a_request_may_be(of) -> None:
    client = of(max_request_bytes=2000)
    content = jsonl([chat_line(1), chat_line(2, user="x" * 5_000_000), chat_line(3)])
    batch = wait_for(client, submit(client, content).id)
    output, errors = both(client, batch)
    assert [one["custom_id"] for one in output] == ["line-1", "line-3"]
    assert [one["error"]["code"] for one in errors] == ["line_too_large"]
    assert "line 2" in errors[0]["error"]["message"]


def test_a_line_of_more_values_than_a_request_may_have(of, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read at all: reading it would let nothing else run."""
    read: list[int] = []
    loads = orjson.loads

    def noting(text: bytes) -> Any:
        read.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", noting)
    client = of(max_request_values=2000)
    content = jsonl([chat_line(1), chat_line(2), chat_line(3)])
    content = content.replace(orjson.dumps("line-2"), b"[" + b"[]," * 5000 + b"1]")
    batch = wait_for(client, submit(client, content).id)
    output, errors = both(client, batch)
    assert [one["custom_id"] for one in output] == ["line-1", "line-3"]
    assert [one["error"]["code"] for one in errors] == ["line_too_large"]
    assert "line 2 holds more than 2000 values" in errors[0]["error"]["message"]
    assert "--max-request-values" in errors[0]["error"]["message"]
    assert max(read) < 10_000
