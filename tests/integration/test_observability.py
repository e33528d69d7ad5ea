"""A real server tells about itself: metrics, explanations, timings, profiles, JSON logs."""

import json
import threading
from pathlib import Path

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
    answer = server.post("/v1/completions", BODY | {"return_timings": True}).json()
    after = scrape(server)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert grown("sglang:num_requests_total") == 1
    assert grown("sglang:generation_tokens_total") == 5
    assert grown("sglang:prompt_tokens_total") == answer["usage"]["prompt_tokens"]
    assert grown("sglang:inter_token_latency_seconds_count") == 4
    assert grown("palladio:bucket_selected_total", "decode", "1", "1") == 4
    assert grown("palladio:computed_tokens_total", "decode") == 4
    assert grown("sglang:http_responses_total", "/v1/completions", "POST", "200") == 1
    assert after["palladio:engine_up",] == 1
    assert after["sglang:startup_time_seconds",] > 0
    assert after["palladio:hbm_bytes", "weights"] > 0
    timings = answer["timings"]
    assert timings["total"] >= timings["queue"] + timings["prefill"] + timings["decode"] - 1e-3
    assert 0 < timings["detokenize"] < timings["total"]


def test_a_stop_string_keeps_what_the_engine_told(server: Server) -> None:
    text = server.post("/v1/completions", BODY | {"max_tokens": 20}).json()["choices"][0]["text"]
    body = BODY | {"max_tokens": 20, "stop": text[8:10], "rid": "stopped"}
    assert server.post("/v1/completions", body).json()["choices"][0]["finish_reason"] == "stop"
    (sample,) = server.http.get("/v1/requests/stopped/explain").raise_for_status().json()["samples"]
    assert sample["num_prefill_chunks"] == 1
    assert sample["queue_seconds"] > 0
    assert sample["total_seconds"] > sample["prefill_seconds"] > 0


def test_explain_while_it_waits_and_afterwards(server: Server) -> None:
    def post(number: int) -> None:
        server.post("/v1/completions", BODY | {"max_tokens": 400, "rid": f"crowd-{number}"})

    threads = [threading.Thread(target=post, args=(number,)) for number in range(2 * MAX_RUNNING)]
    for thread in threads:
        thread.start()
    waiting = []
    while not waiting and any(thread.is_alive() for thread in threads):
        stories = [server.http.get(f"/v1/requests/crowd-{i}/explain").json() for i in range(len(threads))]
        waiting = [story["samples"][0] for story in stories if story.get("status") == "waiting"]
    assert {sample["queue_reason"] for sample in waiting} & {"memory", "slots", "step"}
    for thread in threads:
        thread.join()
    done = [server.http.get(f"/v1/requests/crowd-{i}/explain").json()["samples"][0] for i in range(len(threads))]
    for sample in done:
        assert sample["status"] == "finished"
        assert sample["decode_steps"] >= 399
        assert 1 <= sample["decode_mean_rows"] <= sample["decode_mean_bucket"] <= MAX_RUNNING
        reasons = [sample[f"wait_{reason}_seconds"] for reason in ("slots", "memory", "step", "compile")]
        assert sum(reasons) + sample["handover_seconds"] >= sample["queue_seconds"] - 0.05
    assert max(sample["wait_memory_seconds"] + sample["wait_slots_seconds"] for sample in done) > 0.05


def test_a_profile_of_a_server(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    server.post("/start_profile", {"output_dir": str(folder), "num_steps": 3}).raise_for_status()
    server.post("/v1/completions", BODY)
    server.wait_for_stats(num_running=0)
    assert list(folder.rglob("*.xplane.pb"))
    refused = server.post("/stop_profile", {})
    assert (refused.status_code, "no profile is under way" in refused.text) == (400, True)


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
