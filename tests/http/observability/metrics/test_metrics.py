"""/metrics: what it says of known traffic, read back with Prometheus's own parser."""

import asyncio
import dataclasses
from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from palladio.http.observability.metrics.engine_stats import STATS_TIMEOUT, EngineStatsReader
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError
from palladio.runtime.interface.messages.engine_stats import (
    CompileStats,
    EngineStats,
    MemoryReport,
    ProgramReport,
    RankStats,
)
from tests.fake_engine import CACHED_TOKENS, MODEL, FakeEngine
from tests.http.conftest import wait_until

PROMPT = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}


class Scrape:
    """The samples of one answer of /metrics."""

    def __init__(self, client: httpx.Client) -> None:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        self.families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        self.samples = {
            (sample.name, *sorted((k, v) for k, v in sample.labels.items() if k != "model_name")): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        assert all(
            sample.labels["model_name"] == MODEL for family in self.families.values() for sample in family.samples
        )

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, *sorted(labels.items())]


def test_requests_are_counted_and_timed(observe: Callable[..., httpx.Client], engine: FakeEngine) -> None:
    client = observe(collect_tokens_histogram=True)
    first = client.post("/v1/completions", json=PROMPT).json()["usage"]
    client.post("/v1/completions", json=PROMPT | {"n": 2})
    with client.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as stream:
        assert list(stream.iter_lines())[-2] == "data: [DONE]"
    client.post("/generate", json={"text": "Hello", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}})
    scrape = Scrape(client)
    prompt = first["prompt_tokens"]
    assert scrape("sglang:num_requests_total") == 4
    assert scrape("sglang:num_aborted_requests_total") == 0
    assert scrape("sglang:prompt_tokens_total") == 4 * prompt
    assert scrape("sglang:cached_tokens_total") == 4 * CACHED_TOKENS
    assert scrape("sglang:generation_tokens_total") == 5 * 3
    for name in ("e2e_request_latency_seconds", "queue_time_seconds", "request_time_per_output_token_seconds"):
        assert scrape(f"sglang:{name}_count") == 5, name
    assert scrape("sglang:time_to_first_token_seconds_count") == 5
    assert scrape("sglang:inter_token_latency_seconds_count") == 5 * 2
    assert scrape("sglang:queue_time_seconds_sum") == pytest.approx(5 * 0.5)
    assert scrape("sglang:per_stage_req_latency_seconds_sum", stage="prefill") == pytest.approx(5 * 0.25)
    assert scrape("sglang:per_stage_req_latency_seconds_bucket", stage="prefill", le="0.4") == 5
    assert scrape("sglang:per_stage_req_latency_seconds_bucket", stage="prefill", le="0.2") == 0
    assert scrape("sglang:per_stage_req_latency_seconds_count", stage="compile_wait") == 5
    assert scrape("sglang:prompt_tokens_histogram_sum") == 4 * prompt
    assert scrape("sglang:generation_tokens_histogram_count") == 5


def test_http_is_counted_by_route_not_by_path(http: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        assert http.get(f"/v1/requests/{name}/explain").status_code == 404
    http.post("/v1/completions", json={"prompt": 5})
    http.post("/v1/completions", json=PROMPT)
    http.get("/no/such/route")
    http.request("BREW", "/health")
    scrape = Scrape(http)
    explain = "/v1/requests/{request_id}/explain"
    assert scrape("sglang:http_requests_total", endpoint=explain, method="GET") == 3
    assert scrape("sglang:http_responses_total", endpoint=explain, method="GET", status_code="404") == 3
    for status in ("200", "400"):
        completions = {"endpoint": "/v1/completions", "method": "POST", "status_code": status}
        assert scrape("sglang:http_responses_total", **completions) == 1
    assert scrape("sglang:http_requests_total", endpoint="(none)", method="GET") == 1
    assert scrape("sglang:http_requests_active") == 1, "the scrape itself"
    assert not [key for key in scrape.samples if "BREW" in str(key) or "/a/" in str(key)]


def test_the_engines_snapshot(http: httpx.Client, engine: FakeEngine) -> None:
    scrape = Scrape(http)
    assert scrape("palladio:engine_up") == 1
    assert scrape("sglang:num_running_reqs") == scrape("sglang:num_queue_reqs") == 0
    assert scrape("sglang:max_total_num_tokens") == 20480
    assert scrape("sglang:cache_hit_rate") == 0.25
    assert scrape("sglang:new_token_ratio") == 0.5
    assert scrape("sglang:num_retracted_requests_total") == 2
    assert scrape("palladio:bucket_selected_total", kind="decode", requests="8", tokens="8") == 40
    assert scrape("palladio:bucket_selected_total", kind="prefill", requests="4", tokens="64") == 5
    assert scrape("palladio:padding_tokens_total", kind="prefill") == 20
    assert scrape("palladio:computed_tokens_total", kind="decode") == 240
    assert scrape("palladio:padding_ratio", kind="decode") == 0.25
    assert scrape("palladio:device_idle_seconds_bucket", le="0.01") == 99
    assert scrape("palladio:device_idle_seconds_count") == 100


def test_data_parallel_ranks(http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Scrape(http)
    assert not [key for key in alone.samples if "dp_rank" in str(key)], "one rank has no label"
    assert "groups" not in http.get("/server_info").json()["internal_states"][0]
    busy = RankStats(
        *(3, 2, 160, 10240, 55.5, 0.7, 1, 7, 64, 80, 20, 48, 0, 5, 15, 6, 60),
        num_snapshots=3,
        num_snapshot_hits=4,
        num_evicted_snapshots=2,
        num_event_batches=9,
        num_event_drops=2,
    )
    idle = RankStats(0, 0, 0, 10240, 44.4, 0.5, 0, 2, 32, 0, 0, 16)
    engine.ranks = [busy, idle]
    ready, stats = engine.info, engine.stats

    async def of_ranks(timeout: float = 20.0, **asked: bool) -> EngineStats:
        return dataclasses.replace(await stats(timeout, **asked), unassigned=RankStats(num_waiting=4))

    monkeypatch.setattr(engine, "stats", of_ranks)
    monkeypatch.setattr(
        type(engine), "info", property(lambda self: dataclasses.replace(ready, num_ranks=2, max_total_tokens=10240))
    )
    scrape = Scrape(http)
    for name, values in {
        "sglang:num_running_reqs": [3, 0],
        "sglang:num_used_tokens": [160, 0],
        "sglang:token_usage": [160 / 10240, 0],
        "sglang:num_retracted_reqs": [1, 0],
        "sglang:new_token_ratio": [0.7, 0.5],
        "sglang:gen_throughput": [55.5, 0],
        "sglang:num_retracted_requests_total": [7, 2],
        "sglang:cache_hit_rate": [0.25, 0],
        "sglang:evicted_tokens_total": [48, 16],
        "sglang:spec_accept_length": [2.2, 1],
        "sglang:spec_accept_rate": [0.4, 0],
        "palladio:draft_rows_total": [5, 0],
        "palladio:draft_tokens_total": [15, 0],
        "palladio:accepted_drafts_total": [6, 0],
        "palladio:prefill_tokens_total": [60, 0],
        "palladio:snapshots_held": [3, 0],
        "palladio:kv_event_batches_total": [9, 0],
        "palladio:kv_event_drops_total": [2, 0],
        "palladio:snapshot_hits_total": [4, 0],
        "palladio:evicted_snapshots_total": [2, 0],
        "sglang:max_total_num_tokens": [10240, 10240],
        "palladio:cached_tokens_held": [64, 32],
    }.items():
        found = {key[1:]: value for key, value in scrape.samples.items() if key[0] == name}
        assert found == {(("dp_rank", str(rank)),): value for rank, value in enumerate(values)}, name
    assert [scrape("sglang:num_queue_reqs", dp_rank=rank) for rank in ("0", "1", "(none)")] == [2, 0, 4]
    assert scrape.families.keys() == alone.families.keys()
    labelled = {
        name for name, *labels in scrape.samples if any(label == "dp_rank" and value for label, value in labels)
    }
    assert len(labelled) == 23, "nothing else is a group's"
    groups = http.get("/server_info").json()["internal_states"][0]["groups"]
    assert groups == [
        dataclasses.asdict(busy) | {"cache_hit_rate": 0.25},
        dataclasses.asdict(idle) | {"cache_hit_rate": None},
    ]


def test_programs_and_memory(http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = engine.stats
    programs = [ProgramReport("decode[bs=8]", "hit", 0.5), ProgramReport("decode[bs=16]", "miss", 2.5)]

    async def with_programs(timeout: float):
        known = await stats(timeout)
        values = {name: getattr(known, name) for name in known.__dataclass_fields__}
        return type(known)(
            **values | {"compile": CompileStats(4, programs, 1.5), "memory": MemoryReport(weights=7, kv_cache=9)}
        )

    monkeypatch.setattr(engine, "stats", with_programs)
    scrape = Scrape(http)
    assert scrape("palladio:compile_total", program="decode[bs=8]", result="hit") == 1
    assert scrape("palladio:compile_seconds_total", program="decode[bs=16]", result="miss") == 2.5
    assert scrape("palladio:compile_cache_hits_total") == 1
    assert scrape("palladio:compile_wait_seconds_total") == 1.5
    assert scrape("palladio:programs") == 4
    assert scrape("palladio:hbm_bytes", kind="weights") == 7


@pytest.mark.parametrize("state", ["starting", "restarting", "dead"])
def test_it_answers_whatever_the_engine_does(
    http: httpx.Client, engine: FakeEngine, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.post("/v1/completions", json=PROMPT)

    async def no_stats(timeout: float) -> None:
        raise EngineDeadError("gone")

    monkeypatch.setattr(engine, "stats", no_stats)
    engine.state, engine.num_restarts = state, 3
    scrape = Scrape(http)
    assert scrape("palladio:engine_up") == 0
    assert scrape("palladio:engine_restarts_total") == 3
    assert scrape("sglang:num_requests_total") == 1
    assert "sglang:num_running_reqs" not in scrape.families


def test_an_engine_that_does_not_answer_is_down(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    async def no_stats(timeout: float) -> None:
        limits.append(timeout)
        raise EngineDeadError("the engine did not answer")

    monkeypatch.setattr(engine, "stats", no_stats)
    scrape = Scrape(http)
    assert scrape("palladio:engine_up") == 0
    assert scrape("sglang:max_total_num_tokens") == 20480, "what it chose is known all the same"
    assert limits == [STATS_TIMEOUT]
    assert STATS_TIMEOUT <= 2


def test_a_scrape_checks_no_pages(http: httpx.Client, engine: FakeEngine) -> None:
    Scrape(http)
    http.get("/server_info").raise_for_status()
    assert engine.asked_stats == [False, True]


async def test_scrapes_side_by_side_ask_once(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    stats, gate = engine.stats, asyncio.Event()

    async def slow(timeout: float) -> object:
        await gate.wait()
        return await stats(timeout)

    monkeypatch.setattr(engine, "stats", slow)
    reader = EngineStatsReader(engine)
    gone, *others = [asyncio.create_task(reader.read()) for _ in range(5)]
    await asyncio.sleep(0)
    gone.cancel()
    gate.set()
    answers = await asyncio.gather(*others)
    assert len(engine.asked_stats) == 1
    assert answers[0] is not None
    assert all(answer is answers[0] for answer in answers)
    assert await reader.read() is not answers[0], "the next one asks anew"


def test_a_client_that_goes_away_is_an_aborted_request(http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 0.05
    with http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True, "max_tokens": 50}) as stream:
        next(stream.iter_lines())
    wait_until(lambda: Scrape(http)("sglang:num_aborted_requests_total") == 1)
    scrape = Scrape(http)
    assert scrape("sglang:num_requests_total") == 1
    assert 1 <= scrape("sglang:generation_tokens_total") < 50
    assert scrape("sglang:prompt_tokens_total") > 0
    assert scrape("sglang:cached_tokens_total") == CACHED_TOKENS
    assert scrape("sglang:queue_time_seconds_sum") == pytest.approx(0.5), "known since its first token"
    assert scrape("sglang:e2e_request_latency_seconds_count") == 1


def test_an_engine_that_fails_under_a_stream_loses_no_tokens(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail, engine.fail_after = EngineDeadError("killed"), 2
    with http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True, "n": 2}) as stream:
        assert list(stream.iter_lines())
    scrape = Scrape(http)
    assert scrape("sglang:num_aborted_requests_total") == 1
    assert scrape("sglang:generation_tokens_total") == 2 * 2
    assert scrape("sglang:per_stage_req_latency_seconds_count", stage="prefill") == 2


def test_a_wait_that_ends_in_the_queue_counts(http: httpx.Client, engine: FakeEngine) -> None:
    engine.refuse_in_queue = 4.5
    answer = http.post("/generate", json={"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}})
    assert answer.status_code == 504
    scrape = Scrape(http)
    assert scrape("sglang:num_aborted_requests_total") == 1
    assert scrape("sglang:queue_time_seconds_sum") == pytest.approx(4.5)
    assert scrape("sglang:per_stage_req_latency_seconds_count", stage="prefill") == 0
    assert scrape("sglang:prompt_tokens_total") == scrape("sglang:generation_tokens_total") == 0


def test_a_request_may_stay_out_of_the_metrics(http: httpx.Client) -> None:
    http.post("/v1/completions", json=PROMPT | {"log_metrics": False})
    http.get("/health_generate")
    scrape = Scrape(http)
    assert scrape("sglang:inter_token_latency_seconds_count") == 0
    assert scrape("sglang:num_requests_total") == scrape("sglang:time_to_first_token_seconds_count") == 0


def test_buckets_are_flags(observe: Callable[..., httpx.Client]) -> None:
    client = observe(
        bucket_time_to_first_token=(0.5, 60.0),
        bucket_e2e_request_latency=(0.75, 7.5),
        bucket_inter_token_latency=(0.25,),
        generation_tokens_buckets=(2.0, 4.0),
    )
    client.post("/v1/completions", json=PROMPT)
    scrape = Scrape(client)
    bounds = {
        name: [key[1][1] for key in scrape.samples if key[0] == f"sglang:{name}_bucket"]
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "inter_token_latency_seconds")
    }
    assert list(bounds.values()) == [["0.5", "60.0", "+Inf"], ["0.75", "7.5", "+Inf"], ["0.25", "+Inf"]]
    assert scrape("sglang:generation_tokens_histogram_bucket", le="4.0") == 1
    assert scrape("sglang:generation_tokens_histogram_bucket", le="2.0") == 0
    assert "sglang:prompt_tokens_histogram" not in scrape.families


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"bucket_time_to_first_token": (2.0, 1.0)}, "--bucket-time-to-first-token"),
        ({"bucket_e2e_request_latency": ()}, "--bucket-e2e-request-latency"),
        ({"bucket_inter_token_latency": (0.0, 1.0)}, "--bucket-inter-token-latency"),
        ({"prompt_tokens_buckets": (1.0, 1.0)}, "--prompt-tokens-buckets"),
        ({"num_explained_requests": -1}, "--num-explained-requests"),
        ({"log_requests_target": ""}, "--log-requests-target"),
        ({"otlp_traces_endpoint": ""}, "--otlp-traces-endpoint"),
        ({"profile_folder": ""}, "--profile-folder"),
    ],
)
def test_wrong_flags_are_named(flags: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        ObservabilityConfig(**flags)


def test_openmetrics_on_request(http: httpx.Client) -> None:
    answer = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_what_routers_read_is_one_sample(http: httpx.Client, engine: FakeEngine) -> None:
    scrape = Scrape(http)
    pages = str(20480 // 16)
    assert scrape("sglang:cache_config_info", page_size="16", num_pages=pages) == 1
    assert scrape("vllm:cache_config_info", block_size="16", num_gpu_blocks=pages) == 1
    assert (scrape("vllm:prefix_cache_queries_total"), scrape("vllm:prefix_cache_hits_total")) == (80, 20)
    one = RankStats(num_running=3, num_waiting=2, num_used_tokens=160, num_total_tokens=640, num_prompt_tokens=8)
    engine.ranks = [one, dataclasses.replace(one, num_running=1, num_used_tokens=0)]
    scrape = Scrape(http)
    assert (scrape("vllm:num_requests_running"), scrape("vllm:num_requests_waiting")) == (4, 4)
    assert scrape("vllm:kv_cache_usage_perc") == 160 / 1280
    assert scrape("vllm:prefix_cache_queries_total") == 16
