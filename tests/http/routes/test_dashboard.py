"""GET /dashboard/data: who may ask, what it says, and how rarely it asks the engine."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jsonschema
import pytest

from palladio.http.observability.dashboard import sampler as sampling
from palladio.http.observability.dashboard.sampler import PageMaps, Sampler
from palladio.http.observability.observer import Observer
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.interface.messages.page_map import GroupPages, PageMap
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve, wait_until
from tests.http.observability.metrics.test_metrics import Scrape

pytestmark = pytest.mark.usefixtures("own_server")

PATH = "/dashboard/data"
PROMPT = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
DOCS = Path(__file__).resolve().parents[3] / "docs"
MAP = PageMap(9, 5, 1, 1, [(5, 1, 0), (1, 0, 1), (3, 0, 0)], [GroupPages(None, 1, 5, 1)], 0.004)


@pytest.fixture(scope="module")
def schema() -> dict:
    """The one that the page of the API links to."""
    return json.loads((DOCS / "dashboard.schema.json").read_text(encoding="utf-8"))


def ask(client: httpx.Client, **params: object) -> dict:
    answer = client.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_it_is_what_the_page_of_the_api_says(
    http: httpx.Client, engine: FakeEngine, schema: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = jsonschema.Draft202012Validator(schema).validate
    first = ask(http, pages=True, batches=True)
    check(first)
    assert first["batches"] == []
    http.post("/v1/completions", json=PROMPT).raise_for_status()
    engine.pages = [MAP, MAP]
    engine.ranks = [RankStats(3, 2, 160, 10240, 55.5, 0.7, 1, 7, 64, 80, 20, 48, 0, 5, 15, 6, 60), RankStats()]
    monkeypatch.setattr(sampling, "MAP_INTERVAL", 0.0)
    wait_until(lambda: ask(http)["engine"]["ranks"] != [])
    wait_until(lambda: ask(http, pages=True)["pages"] is not None)
    busy = ask(http, pages=True, batches=True)
    check(busy)
    assert busy["engine"]["memory"]["in_use"] is None
    assert busy["pages"]["maps"][0]["runs"] == [[5, 1, 0], [1, 0, 1], [3, 0, 0]]
    assert busy["engine"]["drafts"] == {
        "rows": 5,
        "tokens": 15,
        "accepted": 6,
        "accept_rate": 0.4,
        "accept_length": 2.2,
    }
    engine.state, engine.failure = "restarting", "signal 9"
    monkeypatch.setattr(engine, "stats", _fail)
    wait_until(lambda: ask(http)["engine"] is None)
    down = ask(http, pages=True)
    check(down)
    assert down["server"]["state"] == "restarting"
    assert down["history"]["up"][-1] == 0
    assert down["errors"][0] | {"time": 0} == {
        "time": 0,
        "where": "engine",
        "message": "signal 9",
        "status": None,
        "request_id": "",
        "count": 1,
    }


async def _fail(*_: object, **__: object) -> None:
    raise EngineDeadError("gone")


def test_it_says_what_metrics_say(http: httpx.Client, engine: FakeEngine) -> None:
    for _ in range(3):
        http.post("/v1/completions", json=PROMPT).raise_for_status()
    engine.fail = EngineDeadError("killed")
    assert http.post("/v1/completions", json=PROMPT).status_code == 503
    answer = ask(http)
    scrape = Scrape(http)
    totals, of_engine = answer["totals"], answer["engine"]
    for name in ("requests", "aborted_requests"):
        assert totals[name] == scrape(f"sglang:num_{name}_total")
    for name in ("prompt_tokens", "generation_tokens", "cached_tokens"):
        assert totals[name] == scrape(f"sglang:{name}_total")
    assert totals["requests"] == 4
    assert totals["latencies"]["ttft"]["p50"] > 0
    assert (of_engine["used_tokens"], of_engine["hit_rate"]) == (
        scrape("sglang:num_used_tokens"),
        scrape("sglang:cache_hit_rate"),
    )
    assert of_engine["total_tokens"] == scrape("sglang:max_total_num_tokens")
    buckets = {(one["kind"], one["tokens"]): one["steps"] for one in of_engine["buckets"]}
    assert buckets["decode", 8] == scrape("palladio:bucket_selected_total", kind="decode", requests="8", tokens="8")
    assert [error["message"] for error in answer["errors"]] == ["killed"]


def test_only_what_is_new_is_sent(http: httpx.Client) -> None:
    first = ask(http)["history"]["time"]
    wait_until(lambda: len(ask(http)["history"]["time"]) > len(first))
    later = ask(http, since=first[-1])["history"]
    assert later["time"]
    assert later["time"][0] > first[-1]
    assert http.get(PATH, params={"since": "nan"}).status_code == 400


def test_with_an_admin_key_no_other_will_do(serve: Serve) -> None:
    url = serve(api_key="alice:" + "a" * 8, admin_api_key="boss-key")

    def status(key: str | None) -> tuple[int, str]:
        answer = httpx.get(url + PATH, headers={} if key is None else {"x-api-key": key})
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    assert status("boss-key")[0] == 200
    assert status(None)[0] == status("wrong")[0] == 401
    code, message = status("a" * 8)
    assert code == 403
    assert "valid" in message
    assert "--admin-api-key" in message


def test_without_api_keys_an_admin_key_is_still_asked_for(serve: Serve) -> None:
    url = serve(admin_api_key="boss-key")
    refused = httpx.get(url + PATH)
    assert refused.status_code == 401
    assert "--admin-api-key" in refused.json()["error"]["message"]
    assert httpx.get(url + PATH, headers={"authorization": "Bearer boss-key"}).status_code == 200


def test_owners_see_their_own_errors_and_batches(serve: Serve, engine: FakeEngine) -> None:
    url = serve(api_key=["alice:aaaaaaaa", "bob:bbbbbbbb"])
    engine.fail = EngineDeadError("killed")
    as_alice, as_bob = ({"x-api-key": key} for key in ("a" * 8, "b" * 8))
    httpx.post(url + "/v1/completions", json=PROMPT, headers=as_alice)
    upload = {"file": ("x.jsonl", b'{"custom_id": "1"}\n')}
    file = httpx.post(url + "/v1/files", files=upload, data={"purpose": "batch"}, headers=as_alice).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    httpx.post(url + "/v1/batches", json=body, headers=as_alice).raise_for_status()
    for headers, count in ((as_alice, 1), (as_bob, 0)):
        found = httpx.get(url + PATH, params={"batches": True}, headers=headers).json()
        assert (len(found["errors"]), len(found["batches"])) == (count, count)


def test_without_the_pages_there_is_no_data_either(serve: Serve) -> None:
    assert httpx.get(serve(ui=False) + PATH).status_code == 404


@pytest.fixture
def observer() -> Iterator[Observer]:
    made = Observer(ObservabilityConfig())
    yield made
    made.close()


async def test_however_many_look_the_engine_is_asked_once_a_while(engine: FakeEngine, observer: Observer) -> None:
    sampler = Sampler(engine, observer, interval=0.05)
    await asyncio.gather(*(sampler.start() for _ in range(5)))
    assert len(engine.asked_stats) == 1
    await asyncio.sleep(0.3)
    await sampler.stop()
    count = len(engine.asked_stats)
    assert 3 <= count <= 8
    assert count - len(sampler.history.rows()) in (0, 1)
    await asyncio.sleep(0.1)
    assert len(engine.asked_stats) == count, "it has stopped"


async def test_maps_are_asked_for_as_rarely_as_they_are_costly(engine: FakeEngine) -> None:
    now = 1000.0
    engine.pages, maps = [MAP], PageMaps(engine, lambda: now)
    for _ in range(5):
        assert [one.used for one in (await maps.get()).maps] == [5]
    assert len(engine.asked_stats) == 1, "a map that took 4 ms is good for 2 s"
    now += 2.01
    await maps.get()
    engine.pages = [PageMap(9, 5, 1, 1, [(9, 0, 0)], [], 0.1)]
    assert len(engine.asked_stats) == 2
    now += 2.01
    await maps.get()
    now += 49
    await maps.get()
    assert len(engine.asked_stats) == 3, "one that took 100 ms is good for 50 s"
    now += 2
    await maps.get()
    assert len(engine.asked_stats) == 4


def test_a_start_in_the_background_needs_no_visitor(observe: Callable[..., httpx.Client], engine: FakeEngine) -> None:
    observe().get("/health").raise_for_status()
    assert engine.asked_stats == [], "an app that is not served asks nobody"
