"""The load as routers ask for it, and SageMaker's two routes."""

import dataclasses
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from palladio import __version__
from palladio.http.routes.routes_load import _sections
from palladio.runtime.interface.messages.engine_stats import EngineStats, RankStats
from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until

BUSY = RankStats(3, 2, 160, 640, 55.55, 0.7, 1, 7, 64, 80, 20, 48, num_waiting_tokens=24)
IDLE = RankStats(0, 0, 0, 640, 0.0, 0.5, 0, 2, 32, 0, 0, 16)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_loads_of_ranks(http: httpx.Client, engine: FakeEngine) -> None:
    engine.ranks = [BUSY, IDLE]
    answer = http.get("/v1/loads?include=core").raise_for_status().json()
    assert answer["version"] == __version__
    assert answer["dp_rank_count"] == 2
    assert (answer["accelerator"], answer["num_accelerators"]) == ("fake", 1)
    busy, idle = answer["loads"]
    assert busy == {
        "dp_rank": 0,
        "num_running_reqs": 3,
        "num_waiting_reqs": 2,
        "num_waiting_uncached_tokens": 24,
        "num_total_reqs": 5,
        "num_used_tokens": 160,
        "num_total_tokens": 184,
        "max_total_num_tokens": 640,
        "max_running_requests": 32,  # of 64 in two ranks
        "token_usage": 0.25,
        "gen_throughput": 55.55,
        "cache_hit_rate": 0.25,
        "utilization": 0.2778,  # 0.25 of the cache, where 0.9 counts as full
    }
    assert (idle["dp_rank"], idle["num_total_tokens"], idle["cache_hit_rate"]) == (1, 0, 0.0)
    (whole,) = http.get("/v1/loads?dp_rank=1&include=all&format=json").json()["loads"]
    assert {name: whole[name] for name in idle} == idle
    assert http.get("/v1/loads").json()["loads"][1].keys() == whole.keys() > idle.keys(), "all sections, as in SGLang"
    assert http.get("/v1/loads?dp_rank=2").json()["loads"] == []
    old = http.get("/get_load").json()
    assert [{name: load[name] for name in load if name != "ts_tic"} for load in old] == [
        {"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 184, "num_pending_tokens": 24},
        {"dp_rank": 1, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0, "num_pending_tokens": 0},
    ]


def test_sections_that_routers_ask_for(http: httpx.Client, engine: FakeEngine) -> None:
    (plain,) = http.get("/v1/loads?include=core").json()["loads"]
    (load,) = http.get("/v1/loads?include=core,disagg,queues,memory").raise_for_status().json()["loads"]
    assert {name: load[name] for name in plain} == plain
    assert set(load) - set(plain) == {"disaggregation", "queues", "memory"}
    assert (load["disaggregation"]["mode"], set(list(load["disaggregation"].values())[1:])) == ("null", {0})
    assert load["memory"]["token_capacity"] == load["max_total_num_tokens"]
    assert load["queues"] == {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0}
    drafted = dataclasses.replace(BUSY, num_draft_rows=10, num_draft_tokens=30, num_accepted_drafts=15)
    engine.ranks = [drafted, IDLE]
    busy, idle = http.get("/v1/loads?include=all").json()["loads"]
    assert busy["speculative"] == {"accept_length": 2.5, "accept_rate": 0.5}
    assert "speculative" not in idle, "there were no drafts"
    assert busy["queues"] == {"waiting": 2, "grammar": 0, "paused": 0, "retracted": 1}


@pytest.mark.parametrize("section", ["core", "memory", "spec", "lora", "disagg", "queues"])
def test_each_section_alone(http: httpx.Client, engine: FakeEngine, section: str) -> None:
    engine.ranks = [dataclasses.replace(BUSY, num_draft_rows=1, num_draft_tokens=3, num_accepted_drafts=2)]
    (plain,) = http.get("/v1/loads?include=core").json()["loads"]
    (load,) = http.get(f"/v1/loads?include={section}").raise_for_status().json()["loads"]
    names = {"spec": ["speculative"], "disagg": ["disaggregation"], "core": [], "lora": []}
    assert sorted(set(load) - set(plain)) == names.get(section, [section])


def test_a_server_is_as_utilized_as_what_is_scarcer(http: httpx.Client, engine: FakeEngine) -> None:
    engine.ranks = [RankStats(num_running=48, num_used_tokens=64, num_total_tokens=640), RankStats()]
    busy, idle = http.get("/v1/loads?include=core").json()["loads"]
    assert (busy["utilization"], idle["utilization"]) == (1.5, 0.0)  # 48 of 32, in two ranks; no cache at all


def test_loads_as_metrics(http: httpx.Client, engine: FakeEngine) -> None:
    engine.ranks = [BUSY, IDLE]
    answer = http.get("/v1/loads?format=prometheus")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {family.type for family in families.values()} == {"gauge"}
    read = {
        name: {sample.labels["dp_rank"]: sample.value for sample in family.samples} for name, family in families.items()
    }
    loads = http.get("/v1/loads").json()["loads"]
    for name in set(loads[0]) - {"dp_rank", "memory", "queues", "disaggregation"}:
        assert read[f"sglang_{name}"] == {"0": loads[0][name], "1": loads[1][name]}
    assert read["sglang_queues_retracted"] == {"0": 1, "1": 0}
    assert read["sglang_memory_token_capacity"] == {"0": 640, "1": 640}
    assert read["sglang_disagg_prefill_inflight_queue_reqs"] == {"0": 0, "1": 0}
    assert "sglang_disagg_mode" not in read, "not a number"
    narrow = http.get("/v1/loads?format=prometheus&include=core&dp_rank=1").text
    assert 'sglang_num_running_reqs{dp_rank="1"} 0\n' in narrow
    assert "queues" not in narrow
    assert 'dp_rank="0"' not in narrow


def test_requests_whose_grammar_is_compiled_are_a_queue_of_their_own() -> None:
    stats = EngineStats([BUSY], unassigned=RankStats(num_waiting=4, num_waiting_tokens=9))
    (part,) = stats.by_rank
    assert part.num_waiting == 6
    queues = _sections(stats, part, {"queues"})["queues"]
    assert queues == {"waiting": 2, "grammar": 4, "paused": 0, "retracted": 1}


def test_released_memory_is_sleep(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.get("/is_sleeping").json() == {"is_sleeping": False}
    engine.state = "released"
    assert http.get("/is_sleeping").json() == {"is_sleeping": True}


def test_the_load_while_requests_run(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.get("/load").json() == {"server_load": 0}
    engine.delay = 1.0
    thread = threading.Thread(target=lambda: http.post("/v1/completions", json={"prompt": "hi"}))
    thread.start()
    wait_until(lambda: bool(engine.calls))
    assert http.get("/load").json() == {"server_load": 1}
    (load,) = http.get("/v1/loads").json()["loads"]
    assert (load["dp_rank"], load["num_running_reqs"], load["max_running_requests"]) == (0, 1, 64)
    assert load["max_total_num_tokens"] == 20480
    engine.delay = 0.0
    thread.join()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("include=core,memry", "include"),
        ("dp_rank=-1", "dp_rank"),
        ("dp_rank=x", "dp_rank"),
        ("format=yaml", "format"),
    ],
)
def test_what_the_loads_do_not_tell(http: httpx.Client, query: str, param: str) -> None:
    answer = http.get(f"/v1/loads?{query}")
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/loads", "/get_load"])
def test_the_load_of_an_engine_that_does_not_answer(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    engine.state = "starting"
    assert http.get(path).status_code == 503
    assert http.get("/load").status_code == 200


def test_ping_is_health(http: httpx.Client, engine: FakeEngine) -> None:
    for state in ("ready", "draining"):
        engine.state = state
        ping, health = http.get("/ping"), http.get("/health")
        assert (ping.status_code, ping.json()) == (health.status_code, health.json())


def test_only_ping_needs_no_key(serve) -> None:
    with httpx.Client(base_url=serve(api_key="k"), timeout=20) as client:
        paths = ("/ping", "/load", "/get_load", "/v1/loads", "/invocations")
        assert [client.get(path).status_code for path in paths] == [200, 401, 401, 401, 401]
        assert client.get("/v1/loads", headers={"x-api-key": "k"}).status_code == 200


def test_invocations_are_chats_and_completions(http: httpx.Client) -> None:
    chat = http.post("/invocations", json=CHAT).json()
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "Hello, wörld 🎉!")
    text = http.post("/invocations", json={"prompt": "hi"}).json()
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "Hello, wörld 🎉!")
    stream = http.post("/invocations", json=CHAT | {"stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "param"), [({}, "messages"), ({"prompt": "hi", "max_tokens": "x"}, "max_tokens"), ([], None)]
)
def test_invocations_that_are_neither(http: httpx.Client, body: object, param: str | None) -> None:
    answer = http.post("/invocations", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
