"""The timelines of GET /v1/requests/{id}/explain."""

import gc
import threading
from typing import Any

import httpx
import pytest

from palladio.http.generation.params import request_options
from palladio.http.observability.explain import timeline_fields
from palladio.http.observability.explain.timeline_fields import TimelineBudget
from palladio.http.observability.observer import Observer
from palladio.http.observability.records.request_record import Origin
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.wire.protocol import SamplingFields
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import MAX_BYTES, RECORD_BYTES, Timeline, TimelineRecord
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.fake_engine import FakeEngine
from tests.fake_timeline import BEGINNING, PROMPT
from tests.http.conftest import wait_until

ASKED = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True, "record_timeline": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
NATIVE = {"text": "hi", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}


def samples(client: httpx.Client, name: str, **query: Any) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/requests/{name}/explain", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["samples"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", ASKED), ("/v1/chat/completions", CHAT), ("/generate", NATIVE)],
    ids=["completions", "chat", "generate"],
)
def test_requests_that_ask_have_one(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    http.post(path, json=body | {"rid": "asks", "record_timeline": True})
    http.post(path, json=body | {"rid": "does-not", "record_timeline": False})
    (sample,) = samples(http, "does-not")
    assert "timeline" not in sample
    (sample,) = samples(http, "asks")
    told, records = sample["timeline"], sample["timeline"]["records"]
    assert (told["state"], told["most_steps"], told["max_bytes"]) == ("whole", 1, MAX_BYTES)
    assert told["bytes"] == RECORD_BYTES * len(records)
    assert [record["kind"] for record in records] == [*(record.kind for record in BEGINNING), *["decode"] * 3]
    assert records[1] == {"kind": "queued", "after_seconds": 0.125, "seconds": 0.25, "reason": "memory"}
    prefill = {"steps": 1, "tokens": 2, "new_tokens": 0, "step_tokens": 6, "bucket_tokens": 64}
    assert (
        records[3] == {"kind": "prefill", "after_seconds": 0.375, "seconds": 0.125, "compile_seconds": 0.0625} | prefill
    )
    assert records[4] == {"kind": "retracted", "after_seconds": 0.5, "seconds": 0.0, "lost_tokens": PROMPT}
    decode = {"steps": 1, "new_tokens": 1, "rows": 5, "bucket": 8, "drafts": 3, "accepted_drafts": 1}
    assert records[6] == {"kind": "decode", "after_seconds": 0.75, "seconds": 0.01} | decode
    assert sum(record.get("new_tokens", 0) for record in records) == sample["completion_tokens"]


def test_one_that_waits_tells_what_it_has_waited_for(http: httpx.Client, engine: FakeEngine) -> None:
    engine.first_delay = 1.0
    thread = threading.Thread(target=lambda: http.post("/v1/completions", json=ASKED | {"rid": "waits"}))
    thread.start()
    wait_until(lambda: "waits" in engine._running)
    (sample,) = samples(http, "waits")
    assert [record["kind"] for record in sample["timeline"]["records"]] == ["handover", "queued"]
    thread.join()


def test_a_value_that_is_no_boolean_is_refused(http: httpx.Client) -> None:
    for path, body in (("/v1/completions", ASKED), ("/v1/chat/completions", CHAT), ("/generate", NATIVE)):
        answer = http.post(path, json=body | {"record_timeline": "fully"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "record_timeline")


def test_a_sample_alone(http: httpx.Client) -> None:
    http.post("/v1/completions", json=ASKED | {"rid": "many", "n": 3})
    assert [sample["index"] for sample in samples(http, "many")] == [0, 1, 2]
    (sample,) = samples(http, "many", sample=2)
    assert (sample["index"], len(sample["timeline"]["records"])) == (2, 9)
    for wrong in ("3", "-1", "x", "", "1" * 5000):
        answer = http.get("/v1/requests/many/explain", params={"sample": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sample"), wrong
        assert "0 … 2" in answer.json()["error"]["message"]


def test_an_answer_has_so_many_records(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_fields, "MAX_SHOWN", 20)
    http.post("/v1/completions", json=ASKED | {"rid": "many", "n": 3})
    told = [sample["timeline"] for sample in samples(http, "many")]
    assert [(one["state"], len(one["records"])) for one in told] == [("whole", 9), ("whole", 9), ("left_out", 0)]
    assert samples(http, "many", sample=2)[0]["timeline"] == told[0]


def test_the_field_is_an_option() -> None:
    assert request_options(SamplingFields.parse({"record_timeline": True})).timeline
    assert not request_options(SamplingFields.parse({})).timeline


def ended(observer: Observer, name: str, num_records: int, *, asks: bool = True) -> None:
    """A request comes and ends."""
    options = RequestOptions(timeline=asks)
    request = GenerationRequest(name, [5], SamplingParams(max_tokens=9), options=options)
    record = observer.begin(name, [request], Origin("/", name, {}), None)
    timeline = Timeline()
    for number in range(num_records):
        timeline.add(TimelineRecord("decode", float(number), 1.0, steps=1))
    trace = RequestTrace(timeline=timeline if asks else None)
    record.add(RequestOutput(name, 0, "", [1], None, None, None, 1, 1, times=RequestTimes(0.0), trace=trace))
    record.end()


def kept(observer: Observer) -> list[int]:
    """Bytes of each remembered request."""
    traces = [record.samples[0].trace for record in observer.finished._records]
    return [len(trace.timeline.data) for trace in traces if trace is not None and trace.timeline is not None]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(ObservabilityConfig(num_explained_requests=4))
    observer._timelines = TimelineBudget(100 * RECORD_BYTES)
    for name in "abc":
        ended(observer, name, 40)
    assert kept(observer) == [0, 40 * RECORD_BYTES, 40 * RECORD_BYTES]
    assert observer.finished._records[0].samples[0].trace.timeline.is_dropped
    ended(observer, "silent", 0, asks=False)
    ended(observer, "large", 101)
    assert kept(observer) == [0, 0, 0], "too large to be kept at all"
    for number in range(9):
        ended(observer, str(number), 20)
    gc.collect()
    assert kept(observer) == [20 * RECORD_BYTES] * 4
    assert len(observer._timelines._kept) <= 5, "what is forgotten with its request is not counted"
