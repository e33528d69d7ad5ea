"""palladio.ray on a real cluster with two replicas: every route, kills under load, scaling, drain. See `make ray`."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make ray` has an environment with it")

from ray import serve

from palladio.ray import app, deploy
from palladio.runtime.interface.errors import ConfigError
from tests.integration.ray_cluster import (
    CHAT,
    SMALL,
    Load,
    Sent,
    engine_of,
    processes,
    ray_cluster,
    stream,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WIDTH = 6  # streams at a time: less than two replicas run


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as url:
        yield url


@pytest.fixture(scope="module")
def url(cluster):
    """Two replicas; an engine is restarted once in an hour."""
    deploy(**SMALL, num_replicas=2, max_engine_restarts=1)
    yield cluster
    serve.delete("palladio")


def lost(sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if one.failure]


def in_flight(sent: list[Sent], moment: float) -> int:
    return sum(one.begun <= moment <= one.ended for one in sent)


def check_losses(sent: list[Sent], moment: float, unnoticed: float = 0.0) -> None:
    """Only what the killed replica had may be lost, which is not all.

    Args:
        unnoticed: seconds in which it went on to take requests.
    """
    failed = lost(sent)
    print(f"{len(sent)} requests, {in_flight(sent, moment)} in flight at the kill, {len(failed)} lost: {failed}")
    late = [one for one in failed if one.begun > moment + unnoticed]
    assert not late
    assert len(failed) < WIDTH
    assert sum(one.begun > moment for one in sent) > WIDTH


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/metrics", "/v1/loads", "/server_info", "/", "/openapi.json"]
)
def test_routes_answer_as_those_of_a_server(url, path):
    answer = httpx.get(url + path, timeout=30)
    assert answer.status_code == 200
    assert len(answer.headers.get_list("x-request-id")) == 1


def test_a_client_s_request_id_comes_back_once(url):
    answer = httpx.get(f"{url}/v1/models", headers={"X-Request-ID": "mine-1"}, timeout=30)
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


def test_files_need_one_replica(url):
    answer = httpx.get(f"{url}/v1/files", timeout=30)
    assert answer.status_code == 501
    assert "num_replicas" in answer.json()["error"]["message"]


def test_bad_input_is_named_as_by_a_server(url):
    answer = httpx.post(url + CHAT, json={"messages": [], "temperature": 9}, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("messages", "temperature")


def test_an_abandoned_stream_is_aborted(url):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as answer:
        next(answer.iter_lines())

    def aborted() -> bool:
        pages = [httpx.get(f"{url}/metrics", timeout=30).text for _ in range(6)]  # of either replica
        lines = [line for page in pages for line in page.splitlines()]
        running = [line for line in lines if line.startswith("sglang:num_running_reqs")]
        counts = [line for line in lines if line.startswith("sglang:num_aborted_requests_total")]
        return all(line.endswith(" 0.0") for line in running) and any(line.endswith(" 1.0") for line in counts)

    wait_until(aborted, 10)


def test_a_killed_engine_is_restarted_and_loses_only_its_streams(url):
    load = Load(url, WIDTH)
    time.sleep(3)
    os.kill(engine_of(processes("ServeReplica")[0]), signal.SIGKILL)
    moment = time.monotonic()
    wait_until(lambda: len(processes("engine_main")) == 2, 60)
    time.sleep(8)
    check_losses(load.stop(), moment)


def test_a_killed_replica_is_replaced_and_loses_only_its_requests(url):
    before = processes("ServeReplica")
    load = Load(url, WIDTH)
    time.sleep(3)
    os.kill(before[1], signal.SIGKILL)
    moment = time.monotonic()
    wait_until(lambda: len(set(processes("ServeReplica")) - {before[1]}) == 2, 60)
    wait_until(lambda: len(processes("engine_main")) == 2, 60)
    time.sleep(5)
    check_losses(load.stop(), moment)
    wait_until(lambda: serve.status().applications["palladio"].status == "RUNNING", 20)


def test_a_replica_whose_engine_is_dead_for_good_is_replaced(url):
    """The first replica's engine has had its one restart."""
    first = processes("ServeReplica")[0]
    load = Load(url, WIDTH)
    time.sleep(3)
    os.kill(engine_of(first), signal.SIGKILL)
    moment = time.monotonic()
    wait_until(lambda: not Path(f"/proc/{first}").exists(), 20)
    wait_until(lambda: len(processes("engine_main")) == 2, 60)
    time.sleep(5)
    check_losses(load.stop(), moment, unnoticed=0.3)


def test_a_flag_that_is_wrong_is_named_before_anything_starts(cluster):
    with pytest.raises(ConfigError, match="tp-sise"):
        deploy(**SMALL, tp_sise=1)


def test_replicas_follow_the_load_up_and_down_and_drain(cluster, url):
    """A deployment of its own, behind a prefix, in the place of the other one."""
    serve.delete("palladio")
    scaling: dict[str, Any] = {
        "max_replicas": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "look_back_period_s": 3,
        "target_load": 0.7,
    }
    deploy(**SMALL, **scaling, route_prefix="/llm")
    base = f"{cluster}/llm"
    assert httpx.get(f"{base}/v1/models", timeout=30).status_code == 200
    assert len(processes("engine_main")) == 1
    load = Load(base, 8)
    wait_until(lambda: len(processes("engine_main")) == 2, 60)
    time.sleep(5)
    sent = load.stop()
    assert not lost(sent)
    with httpx.Client(base_url=base, timeout=100) as client:
        ends = time.monotonic() + 60
        while len(processes("engine_main")) > 1:  # what runs while one of them goes is answered to its end
            assert time.monotonic() < ends
            assert stream(client, "Go on", 400).failure == ""
    assert httpx.get(f"{base}/health", timeout=30).status_code == 200


def test_what_runs_when_the_application_is_deleted_is_answered(cluster, url):
    load = Load(f"{cluster}/llm", 2, max_tokens=600)
    time.sleep(1.5)
    moment = time.monotonic()
    serve.delete("palladio")
    sent = [one for one in load.stop() if one.begun < moment]
    assert len(sent) >= 2
    assert not lost(sent)


def test_a_serve_configuration_builds_it():
    built = app({"model_path": "default", "num_replicas": "2", "ui": "false"})
    assert type(built).__name__ == "Application"
