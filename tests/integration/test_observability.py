"""A real server tells about itself: metrics, explanations, timings, profiles, JSON logs."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.serving import MAX_RUNNING, MODEL, Server

BODY = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True, "temperature": 0}


def scrape(server: Server) -> dict[tuple[str, ...], float]:
    samples = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").raise_for_status().text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == MODEL
            samples[sample.name, *sample.labels.values()] = sample.value
    return samples


def test_metrics_count_what_is_sent(server: Server) -> None:
    before = scrape(server)
    # As many tokens as take longer than a busy machine keeps the front waiting: else all may come to it at once.
    answer = server.post("/v1/completions", BODY | {"return_timings": True, "max_tokens": 400}).json()
    after = scrape(server)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert grown("sglang:num_requests_total") == 1
    assert grown("sglang:generation_tokens_total") == 400
    assert grown("sglang:prompt_tokens_total") == answer["usage"]["prompt_tokens"]
    assert 0 < grown("sglang:inter_token_latency_seconds_count") <= 399, "tokens that come with the first have no wait"
    assert grown("palladio:bucket_selected_total", "decode", "1", "1") == 50, "399 tokens, up to eight a step"
    assert grown("palladio:computed_tokens_total", "decode") == 399
    assert grown("sglang:http_responses_total", "/v1/completions", "POST", "200") == 1
    assert after["palladio:engine_up",] == 1
    assert after["sglang:startup_time_seconds",] > 0
    assert after["palladio:hbm_bytes", "weights"] > 0
    timings = answer["timings"]
    assert timings["total"] >= timings["queue"] + timings["prefill"] + timings["decode"] - 1e-3
    assert 0 < timings["detokenize"] < timings["total"]


def test_a_stop_string_keeps_what_the_engine_told(server: Server) -> None:
    text = server.post("/v1/completions", BODY | {"max_tokens": 20}).json()["choices"][0]["text"]
    body = BODY | {"max_tokens": 20, "stop": text[8:10], "rid": "stopped", "record_timeline": True}
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    (sample,) = server.http.get("/v1/requests/stopped/explain").raise_for_status().json()["samples"]
    assert sample["num_prefill_chunks"] == 1
    assert sample["queue_seconds"] > 0
    assert sample["total_seconds"] > sample["prefill_seconds"] > 0
    records = sample["timeline"]["records"]
    assert sum(record.get("new_tokens", 0) for record in records) == answer["usage"]["completion_tokens"]
    computed = sum(record["tokens"] for record in records if record["kind"] in ("prefix", "prefill"))
    assert computed == answer["usage"]["prompt_tokens"]
    assert 0 < sum(record["seconds"] for record in records) <= sample["total_seconds"] + 0.01


def crowd(server: Server) -> list[dict[str, Any]]:
    """Sends twice as many requests as run at once, and sees them end; returns what was said of those that waited."""

    def post(number: int) -> None:
        server.post("/v1/completions", BODY | {"max_tokens": 400, "rid": f"crowd-{number}"})

    waiting: list[dict[str, Any]] = []
    with ThreadPoolExecutor(2 * MAX_RUNNING) as pool:
        posts = [pool.submit(post, number) for number in range(2 * MAX_RUNNING)]
        while not waiting and not all(post.done() for post in posts):
            stories = [server.http.get(f"/v1/requests/crowd-{i}/explain").json() for i in range(len(posts))]
            waiting = [story["samples"][0] for story in stories if story.get("status") == "waiting"]
    return waiting


@pytest.mark.slow  # tests/http/routes/test_explain.py has each field
def test_explain_while_it_waits_and_afterwards(server: Server) -> None:
    # On a busy machine they may have ended before the first question: then they come again.
    waiting = next(found for _ in range(10) if (found := crowd(server)))
    assert {sample["queue_reason"] for sample in waiting} & {"memory", "slots", "step"}
    numbers = range(2 * MAX_RUNNING)
    done = [server.http.get(f"/v1/requests/crowd-{i}/explain").json()["samples"][0] for i in numbers]
    for sample in done:
        assert sample["status"] == "finished"
        assert 399 - sample["num_retractions"] <= sample["decode_steps"] <= 400
        assert 1 <= sample["decode_mean_rows"] <= sample["decode_mean_bucket"] <= MAX_RUNNING
        reasons = [sample[f"wait_{reason}_seconds"] for reason in ("slots", "memory", "step", "compile")]
        assert sum(reasons) + sample["handover_seconds"] >= sample["queue_seconds"] - 0.05
    assert max(sample["wait_memory_seconds"] + sample["wait_slots_seconds"] for sample in done) > 0.05


def test_a_profile_of_a_server(server: Server) -> None:
    started = server.post("/start_profile", {"output_dir": "mine", "num_steps": 3}).raise_for_status().json()
    folder = Path(started["output_dir"])
    assert folder.name == "mine"
    server.post("/v1/completions", BODY | {"max_tokens": 20})
    server.wait_for_stats(num_running=0)
    deadline = time.monotonic() + 60
    while f"Wrote a profile of 3 steps to {folder}" not in server.log():
        assert time.monotonic() < deadline, "it is not written"
        time.sleep(0.05)
    assert list(folder.rglob("*.xplane.pb"))
    refused = server.post("/stop_profile", {})
    assert (refused.status_code, "no profile is running" in refused.text) == (400, True)
    shutil.rmtree(folder)
    for name in ("nul\0", "/proc", "../x"):
        assert server.post("/start_profile", {"output_dir": name}).status_code == 400
    server.post("/start_profile", {"output_dir": "mine"}).raise_for_status()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    spoiled = server.post("/stop_profile", {})
    assert (spoiled.status_code, "cannot write the profile" in spoiled.text) == (400, True)
    folder.unlink()
    server.post("/start_profile", {"output_dir": "mine"}).raise_for_status()
    server.post("/stop_profile", {}).raise_for_status()
    shutil.rmtree(folder.parent)
    assert scrape(server)["palladio:engine_restarts_total",] == 0


def test_who_times_out_in_the_queue_is_told_for_what_it_waited(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = {"prompt": [[5]] * MAX_RUNNING, "max_tokens": 240, "ignore_eos": True, "seed": 0}
        before = scrape(server)
        late = None
        while late is None:  # what keeps it waiting may end before its time is up, on a busy machine
            busy = pool.submit(server.post, "/v1/completions", long)
            while server.stats()["num_running"] != MAX_RUNNING and not busy.done():
                pass
            answer = server.post("/generate", {"text": "Hello", "rid": "late", "timeout": 0.05})
            late = answer if answer.status_code == 504 else None
            busy.result()
    story = server.http.get("/v1/requests/late/explain").raise_for_status().json()
    (sample,) = story["samples"]
    assert (story["status"], sample["finish_reason"]) == ("failed", "abort")
    waits = sum(sample[f"wait_{reason}_seconds"] for reason in ("slots", "memory", "step", "compile"))
    assert sample["handover_seconds"] + waits >= 0.04  # a step that takes long leaves it in the engine's inbox
    assert sample["queue_seconds"] >= 0.05
    after = scrape(server)
    assert after["sglang:num_aborted_requests_total",] == before["sglang:num_aborted_requests_total",] + 1
    assert after["sglang:queue_time_seconds_sum",] >= before["sglang:queue_time_seconds_sum",] + 0.05


@pytest.mark.slow
def test_json_logs_of_both_processes(launch, tmp_path: Path) -> None:
    requests = tmp_path / "requests.log"
    server = launch(
        f"--served-model-name {MODEL} --log-format json --decode-log-interval 2 --api-key sk-hidden "
        f"--log-requests --log-requests-level 3 --log-requests-format json --log-requests-target {requests} "
        "--enable-request-time-stats-logging"
    )
    headers = {"authorization": "Bearer sk-hidden"}
    server.http.post("/v1/completions", json=BODY | {"rid": "told"}, headers=headers).raise_for_status()
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    assert {"prefill", "decode", "request_times"} <= {line.get("event") for line in lines}
    (times,) = [line for line in lines if line.get("event") == "request_times"]
    assert times["total"] > times["prefill"] > 0
    (decode, *_) = [line for line in lines if line.get("event") == "decode"]
    assert decode["message"].startswith("Decode batch. #running-req: 1,")
    assert (decode["running_reqs"], decode["bucket_requests"], decode["level"]) == (1, 1, "info")
    received, finished = [json.loads(line) for line in requests.read_text().splitlines()]
    assert (received["request_id"], received["prompt"]) == ("told", ["Hello"])
    assert finished["completion_tokens"] == [5]
    assert "sk-hidden" not in server.log() + requests.read_text()
