"""GET /v1/requests/{id}/explain, and the timings that answers carry."""

import json
import re
import threading
from collections.abc import Callable
from typing import Any, get_args

import httpx
import pytest

from palladio.http.observability.explain.explanation import explain_record
from palladio.http.observability.observer import Observer
from palladio.http.observability.records.request_record import Origin, RequestRecord
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.request_trace import (
    LostPages,
    PrefillChunk,
    RequestTimes,
    RequestTrace,
    SnapshotHit,
)
from palladio.runtime.interface.outputs.timeline import TimelineKind
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.docs.test_api_docs import names, paths_of, rows
from tests.fake_engine import CACHED_TOKENS, FakeEngine
from tests.http.conftest import wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}


def explain(client: httpx.Client, name: str) -> dict[str, Any]:
    answer = client.get(f"/v1/requests/{name}/explain")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_finished_request(http: httpx.Client) -> None:
    usage = http.post(COMPLETIONS, json=PROMPT | {"rid": "mine"}, headers={"x-request-id": "trace-7"}).json()["usage"]
    told = explain(http, "mine")
    assert told == explain(http, "trace-7")
    assert (told["id"], told["x_request_id"], told["status"], told["error"]) == ("mine", "trace-7", "finished", None)
    assert told["route"] == COMPLETIONS
    (sample,) = told["samples"]
    assert (sample["status"], sample["finish_reason"]) == ("finished", "length")
    assert sample["queue_seconds"] == pytest.approx(0.5, abs=1e-3)
    assert sample["prefill_seconds"] == pytest.approx(0.25, abs=1e-3)
    assert sample["total_seconds"] >= 1.0 - 1e-3
    assert sample["compile_wait_seconds"] == 0.0625
    assert sample["detokenize_seconds"] == 0.125
    assert (sample["wait_memory_seconds"], sample["retracted_meanwhile"]) == (0.5, 3)
    assert (sample["decode_steps"], sample["decode_mean_rows"], sample["decode_mean_bucket"]) == (10, 2.5, 4.0)
    prompt = usage["prompt_tokens"]
    assert (sample["prompt_tokens"], sample["completion_tokens"], sample["cached_tokens"]) == (prompt, 3, CACHED_TOKENS)
    (chunk,) = sample["prefill_chunks"]
    assert (chunk["tokens"], chunk["step_tokens"], chunk["bucket_tokens"]) == (prompt, prompt + 4, 64)
    assert chunk["padding_tokens"] == 64 - prompt - 4
    assert (
        "waited 0.50 s: KV full (0.50 s), 3 retracted; 0.06 s waiting for programs to compile; pre" in told["summary"]
    )
    assert "grammar" not in sample


def test_one_that_waits_says_for_what(http: httpx.Client, engine: FakeEngine) -> None:
    engine.first_delay = 1.0
    thread = threading.Thread(target=lambda: http.post(COMPLETIONS, json=PROMPT | {"rid": "waits", "n": 2}))
    thread.start()
    wait_until(lambda: "waits" in engine._running)
    told = explain(http, "waits")
    assert told["status"] == "waiting"
    assert [sample["index"] for sample in told["samples"]] == [0, 1]
    sample = told["samples"][1]
    assert (sample["queue_reason"], sample["queue_position"], sample["queue_length"]) == ("memory", 2, 5)
    assert (sample["queue_pages_needed"], sample["queue_pages_available"]) == (12, 9)
    assert sample["queue_seconds"] is None
    assert sample["summary"] == (
        "has waited 1.50 s: KV full (1.50 s), 3 retracted; "
        "number 2 of 5 in the queue, needs 12 pages of KV cache and 9 are free"
    )
    thread.join()
    assert explain(http, "waits")["status"] == "finished"


def test_while_the_engine_is_restarted(http: httpx.Client, engine: FakeEngine, monkeypatch: Any) -> None:
    engine.first_delay = 1.0
    thread = threading.Thread(target=lambda: http.post(COMPLETIONS, json=PROMPT | {"rid": "waits"}))
    thread.start()
    wait_until(lambda: "waits" in engine._running)

    async def not_now(request_ids: object) -> None:
        raise EngineNotReadyError("it is being restarted")

    monkeypatch.setattr(engine, "explain", not_now)
    assert explain(http, "waits")["samples"][0]["status"] == "unknown"
    thread.join()


def test_every_prompt_and_sample_has_an_entry(http: httpx.Client) -> None:
    http.post(COMPLETIONS, json=PROMPT | {"prompt": ["a", "bb"], "n": 2, "rid": "many"})
    told = explain(http, "many")
    assert [sample["index"] for sample in told["samples"]] == [0, 1, 2, 3]
    assert {sample["status"] for sample in told["samples"]} == {"finished"}


def test_generate_is_found_by_every_id_of_its_answers(http: httpx.Client, engine: FakeEngine) -> None:
    texts = {"text": ["a", "bb"], "sampling_params": {"max_new_tokens": 2}}
    for rid in ("x", ["one", "two"], None):
        answers = http.post("/generate", json=texts | {"rid": rid}, headers={"x-request-id": "shown"}).json()
        ids = [answer["meta_info"]["id"] for answer in answers]
        stories = [explain(http, name) for name in [*ids, "shown"]]
        assert all(story == stories[0] for story in stories)
        assert len(stories[0]["samples"]) == 2
    engine.first_delay = 1.0
    thread = threading.Thread(target=lambda: http.post("/generate", json=texts | {"rid": ["lives", "too"]}))
    thread.start()
    wait_until(lambda: {"lives", "too"} <= set(engine._running))
    engine.asked_explain.clear()
    told = [explain(http, name) for name in ("lives", "too")]
    assert engine.asked_explain == [["lives", "too"]] * 2, "one question, whatever the number of prompts"
    assert [story["status"] for story in told] == ["waiting", "waiting"]
    assert [sample["queue_reason"] for sample in told[0]["samples"]] == ["memory", "memory"]
    thread.join()


def test_streams_chats_and_generate_are_known_too(http: httpx.Client) -> None:
    message = [{"role": "user", "content": "hi"}]
    body = {"messages": message, "max_tokens": 2, "stream": True, "rid": "streamed"}
    with http.stream("POST", CHAT, json=body) as stream:
        assert list(stream.iter_lines())
    assert explain(http, "streamed")["route"] == CHAT
    http.post("/generate", json={"text": "hi", "rid": "native"})
    assert explain(http, "native")["samples"][0]["finish_reason"] == "stop"


def test_a_request_that_failed(http: httpx.Client, engine: FakeEngine) -> None:
    engine.abort_status, engine.fail_after = 504, 1
    assert http.post(COMPLETIONS, json=PROMPT | {"rid": "late"}).status_code == 504
    told = explain(http, "late")
    assert (told["status"], told["error"]) == ("failed", "the engine gave up")
    assert "ended early: the engine gave up" in told["summary"]


def test_a_request_that_ended_in_the_queue_tells_its_wait(http: httpx.Client, engine: FakeEngine) -> None:
    engine.refuse_in_queue = 4.5
    body = {"text": ["a", "b"], "rid": "late", "sampling_params": {"n": 2}}
    assert http.post("/generate", json=body).status_code == 504
    told = explain(http, "late")
    assert (told["status"], told["error"]) == ("failed", "The request did not finish within its timeout")
    first = told["samples"][0]
    assert (first["status"], first["finish_reason"]) == ("finished", "abort")
    assert (first["wait_memory_seconds"], first["queue_seconds"]) == (4.5, pytest.approx(4.5))
    assert told["summary"].startswith("waited 4.50 s: KV full (4.50 s) | no output after 0.")
    assert {sample["status"] for sample in told["samples"][1:]} == {"failed"}


def test_a_client_that_went_away_leaves_a_story(http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 0.05
    with http.stream("POST", COMPLETIONS, json=PROMPT | {"rid": "gone", "stream": True, "max_tokens": 90}) as stream:
        next(stream.iter_lines())
    wait_until(lambda: explain(http, "gone")["status"] == "failed")
    (sample,) = explain(http, "gone")["samples"]
    assert sample["status"] == "failed"
    assert "finish_reason" not in sample
    assert 1 <= sample["completion_tokens"] < 90
    assert (sample["queue_seconds"], sample["prefill_seconds"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert sample["num_prefill_chunks"] == 1
    assert "KV full (0.50 s), 3 retracted" in sample["summary"]


def test_a_stream_that_failed_says_why(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail, engine.fail_after = EngineDeadError("the engine process was killed by SIGKILL"), 2
    with http.stream("POST", COMPLETIONS, json=PROMPT | {"rid": "cut", "stream": True}) as stream:
        assert list(stream.iter_lines())
    told = explain(http, "cut")
    assert (told["status"], told["error"]) == ("failed", "the engine process was killed by SIGKILL")


def test_an_id_may_hold_slashes(http: httpx.Client) -> None:
    http.post(COMPLETIONS, json=PROMPT | {"rid": "a/b c"})
    assert explain(http, "a/b%20c")["id"] == "a/b c"


def test_the_last_so_many_are_remembered(observe: Callable[..., httpx.Client]) -> None:
    client = observe(num_explained_requests=2)
    for name in ("first", "second", "third"):
        client.post(COMPLETIONS, json=PROMPT | {"rid": name})
    answer = client.get("/v1/requests/first/explain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    assert "--num-explained-requests" in answer.json()["error"]["message"]
    assert explain(client, "second")["id"] == "second"
    assert explain(client, "third")["id"] == "third"
    assert observe(num_explained_requests=0).get("/v1/requests/third/explain").status_code == 404


def test_requests_of_many_samples_count_for_more(observe: Callable[..., httpx.Client]) -> None:
    client = observe(num_explained_requests=3)
    body = PROMPT | {"max_tokens": 1}
    for name, n in (("first", 1), ("wide", 20), ("last", 4)):
        client.post(COMPLETIONS, json=body | {"rid": name, "n": n})
    assert client.get("/v1/requests/first/explain").status_code == 404, "25 samples are over 8 a request"
    assert len(explain(client, "wide")["samples"]) == 20
    client.post(COMPLETIONS, json=body | {"rid": "huge", "n": 64})
    assert client.get("/v1/requests/wide/explain").status_code == 404
    assert len(explain(client, "huge")["samples"]) == 64, "the last one is always there"
    client.post(COMPLETIONS, json=body | {"rid": "small"})
    assert client.get("/v1/requests/huge/explain").status_code == 404
    assert explain(client, "small")["id"] == "small"


def test_an_id_that_comes_again_is_the_later_request(observe: Callable[..., httpx.Client]) -> None:
    client = observe(num_explained_requests=2)
    for count in (1, 2, 3):
        client.post(COMPLETIONS, json=PROMPT | {"rid": "again", "max_tokens": count})
    assert explain(client, "again")["samples"][0]["completion_tokens"] == 3


def test_the_page_names_every_field(http: httpx.Client, engine: FakeEngine) -> None:
    http.post(COMPLETIONS, json=PROMPT | {"rid": "done", "record_timeline": True})
    engine.first_delay = 1.0
    thread = threading.Thread(target=lambda: http.post(COMPLETIONS, json=PROMPT | {"rid": "waits"}))
    thread.start()
    wait_until(lambda: "waits" in engine._running)
    records = explain(http, "done")["samples"][0]["timeline"]["records"]
    given = {f"samples[].timeline.records[].{field}" for record in records for field in record}
    given |= set(paths_of(explain(http, "done"))) | set(paths_of(explain(http, "waits")))
    thread.join()
    documented = {leaf for cell, _ in rows("explanation") for leaf in names(cell)}
    given |= {path for path in paths_of(explain_record(of_states(), {}, 8)) if "[]." in path}
    empty = {f"samples[].{name}" for name in ("retractions", "prefill_chunks", "snapshots")}
    assert given - empty == documented
    kinds = next(meaning for cell, meaning in rows("explanation") if "timeline.records[].kind" in cell)
    assert set(re.findall(r"\w+", kinds)) - {"or"} == set(get_args(TimelineKind))


def of_states() -> RequestRecord:
    """A request of a model that keeps states: it began at a snapshot, was retracted, and went on at another one."""
    options, params = RequestOptions(), SamplingParams(max_tokens=9)
    record = Observer(ObservabilityConfig()).begin(
        "s", [GenerationRequest("s", [5], params, options=options)], Origin("/", "s", {}), None
    )
    trace = RequestTrace(
        retractions=[LostPages(13.0, 5, 32)],
        chunks=[PrefillChunk(11.0, 20, 20, 32, 0.5)],
        num_chunks=1,
        snapshots=[SnapshotHit(11.0, 9, 16), SnapshotHit(14.0, 10, 32)],
    )
    times = RequestTimes(10.0, 11.0, 12.0, 15.0)
    record.add(RequestOutput("s", 0, "", [1], None, None, None, 36, 1, 16, 1, times=times, trace=trace))
    record.end()
    return record


def test_a_snapshot_and_what_a_retraction_lost_behind_it() -> None:
    told = explain_record(of_states(), {}, 8)
    (sample,) = told["samples"]
    assert sample["snapshots"] == [
        {"after_seconds": 1.0, "slot": 9, "cached_tokens": 16},
        {"after_seconds": 4.0, "slot": 10, "cached_tokens": 32},
    ]
    assert sample["retractions"] == [{"after_seconds": 3.0, "lost_tokens": 5, "last_snapshot_tokens": 32}]
    assert "prefill of 20 tokens, 16 from the cache (snapshot 9) in" in told["summary"]
    assert sample["summary"].endswith("retracted once, losing 5 cached tokens behind a snapshot")


TIMINGS = {"queue", "compile_wait", "prefill", "decode", "detokenize", "total", "cached_tokens", "retractions"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_timings_on_request(http: httpx.Client, path: str) -> None:
    body = {"max_tokens": 3, "ignore_eos": True}
    body |= {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    assert "timings" not in http.post(path, json=body).json()
    timings = http.post(path, json=body | {"return_timings": True, "n": 2}).json()["timings"]
    assert set(timings) == TIMINGS
    assert timings["queue"] == pytest.approx(0.5, abs=1e-3)
    assert timings["prefill"] == pytest.approx(0.25, abs=1e-3)
    assert (timings["compile_wait"], timings["detokenize"]) == (0.0625, 0.25)
    assert (timings["cached_tokens"], timings["retractions"]) == (CACHED_TOKENS, 0)


@pytest.mark.parametrize("usage", [{}, {"include_usage": True}, {"continuous_usage_stats": True}])
def test_timings_of_a_stream_come_once_in_its_last_chunk(http: httpx.Client, usage: dict[str, bool]) -> None:
    body = PROMPT | {"prompt": ["a", "bb"], "stream": True, "return_timings": True, "stream_options": usage}
    with http.stream("POST", COMPLETIONS, json=body) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line and line != "data: [DONE]"]
    assert [number for number, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
    assert set(chunks[-1]["timings"]) == TIMINGS
    assert chunks[-1]["timings"]["cached_tokens"] == 2 * CACHED_TOKENS
    assert bool(chunks[-1]["choices"]) != ("include_usage" in usage)


def test_meta_info_has_sglangs_names(http: httpx.Client) -> None:
    meta = http.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 3}}).json()["meta_info"]
    assert meta["queue_time"] == pytest.approx(0.5, abs=1e-3)
    assert meta["forward_entry_time"] - meta["request_received_ts"] == pytest.approx(0.5, abs=1e-3)
    assert meta["prefill_finished_time"] - meta["forward_entry_time"] == pytest.approx(0.25, abs=1e-3)
    assert meta["first_token_latency"] == pytest.approx(0.75, abs=1e-3)
    assert meta["request_finished_ts"] - meta["request_received_ts"] == pytest.approx(meta["e2e_latency"], abs=1e-3)
    assert meta["decode_throughput"] == pytest.approx(2 / meta["decode_time"])
    of_drafts = {"spec_verify_ct": 2, "spec_draft_token_num": 6, "spec_accept_token_num": 3}
    of_drafts |= {"spec_accept_length": 2.5, "spec_accept_rate": 0.5}
    assert {name: value for name, value in meta.items() if name.startswith("spec_")} == of_drafts
