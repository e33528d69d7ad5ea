"""OutputStream: the record of a request has every output, whichever way it took to the client."""

import json

import httpx

from tests.fake_engine import MODEL, FakeEngine

COUNT = "sglang:inter_token_latency_seconds_count"


def num_gaps(http: httpx.Client) -> float:
    """Times between two tokens that the server has measured."""
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(COUNT)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_outputs_on_the_fast_path_are_in_the_record(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = "Hello, " * 20
    before = num_gaps(http)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    options = {"max_tokens": 40, "stream_options": {"include_usage": True}}
    events = http.post("/v1/chat/completions", json=body | options).text.split("\n\n")
    usage = json.loads(events[-3].removeprefix("data: "))["usage"]
    assert usage["completion_tokens"] > 20
    assert num_gaps(http) - before == usage["completion_tokens"] - 1
