"""palladio.ray on a real cluster with two replicas: every route, kills under load, scaling, drain. See `make ray`: it
runs those marked `ingress` with HAProxy in place of Serve's proxy, too."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make ray` has an environment with it")

import ray
from ray import serve

from palladio.flags.default_model import default_model_path
from palladio.ray import app, deploy
from palladio.ray.served_app import FIGURES
from palladio.ray.tpu_slice import CORES_PER_CHIP, TpuSlice
from palladio.runtime.interface.errors import ConfigError
from tests.docs.doc_blocks import ROOT, blocks
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
from tests.integration.test_blocks_of_the_docs import OF_RAY
from tests.postgres_server import PostgresServer, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WIDTH = 6  # streams at a time: less than two replicas run
SOON = 150.0  # seconds; a replica takes 10 to start on idle cores
# Seconds in which HAProxy may still send requests to a replica that has gone; Serve's proxy sends those to another one.
STALE = 0.3 if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" else 0.0


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


@pytest.fixture(scope="module")
def restarted(url) -> list[int]:
    """Replicas, by their pids, whose engines have had their one restart. Ray gives a replica that comes later a process
    that may be older."""
    return []


def lost(sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if one.failure]


def all_run() -> bool:
    """Whether both replicas are ready."""
    application = serve.status().applications["palladio"]
    ready = [deployment.replica_states.get("RUNNING") for deployment in application.deployments.values()]
    return application.status == "RUNNING" and ready == [2]


def check_a_kill(url: str, victim: int, has_recovered: Callable[[], bool], unnoticed: float = 0.0) -> None:
    """Kills a process under load, and waits until `has_recovered` and all run again: what is lost was in flight when it
    was killed, and is not all.

    Args:
        unnoticed: seconds after the kill in which its replica went on to take requests.
    """
    with Load(url, WIDTH) as load:
        time.sleep(3)
        os.kill(victim, signal.SIGKILL)
        moment = time.monotonic()
        wait_until(has_recovered, SOON)
        wait_until(all_run, SOON)
        answered = len(load.sent)
        wait_until(lambda: len(load.sent) > answered + 2 * WIDTH, SOON)
        sent = load.stop()
    failed = lost(sent)
    print(f"{len(sent)} requests, {len(failed)} lost: {failed}")
    assert not [one for one in failed if not one.begun - unnoticed <= moment <= one.ended]
    assert len(failed) < WIDTH


@pytest.mark.ingress
@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/metrics", "/v1/loads", "/server_info", "/", "/openapi.json"]
)
def test_routes_answer_as_those_of_a_server(url, path):
    answer = httpx.get(url + path, timeout=30)
    assert answer.status_code == 200
    assert len(answer.headers.get_list("x-request-id")) == 1


@pytest.mark.ingress
def test_a_client_s_request_id_comes_back_once(url):
    answer = httpx.get(f"{url}/v1/models", headers={"X-Request-ID": "mine-1"}, timeout=30)
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


@pytest.mark.ingress
def test_files_need_one_replica(url):
    answer = httpx.get(f"{url}/v1/files", timeout=30)
    assert answer.status_code == 501
    assert "num_replicas" in answer.json()["error"]["message"]


@pytest.mark.ingress
def test_bad_input_is_named_as_by_a_server(url):
    answer = httpx.post(url + CHAT, json={"messages": [], "temperature": 9}, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("messages", "temperature")


def test_ray_s_metrics_show_each_replica(url):
    """At the endpoint of the node, which Prometheus finds by Ray's service discovery."""
    (node,) = ray.nodes()
    page = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def shown() -> bool:
        lines = httpx.get(page, timeout=30).text.splitlines()
        found = {name: [line for line in lines if line.startswith(f"ray_{name}{{")] for name in FIGURES}
        return all(len(lines) == 2 for lines in found.values())

    wait_until(shown, 40)


@pytest.mark.ingress
def test_an_abandoned_stream_is_aborted(url):
    body = {"text": "a", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as answer:
        next(answer.iter_lines())

    wait_until(lambda: none_runs(url) and "1.0" in values(url, "sglang:num_aborted_requests_total"), 10)


def values(url: str, metric: str) -> set[str]:
    """Of either replica: a scrape reaches one of them."""
    pages = [httpx.get(f"{url}/metrics", timeout=30).text for _ in range(6)]
    return {line.split()[-1] for page in pages for line in page.splitlines() if line.startswith(metric)}


def none_runs(url: str) -> bool:
    return values(url, "sglang:num_running_reqs") == {"0.0"}


@pytest.mark.ingress
def test_a_killed_engine_is_restarted_and_loses_only_its_streams(url, restarted):
    wait_until(all_run, SOON)
    restarted.append(processes("ServeReplica")[0])
    killed = engine_of(restarted[0])
    check_a_kill(url, killed, lambda: len(set(processes("engine_main")) - {killed}) == 2)


@pytest.mark.ingress
def test_a_killed_replica_is_replaced_and_loses_only_its_requests(url, restarted):
    wait_until(all_run, SOON)
    killed = next(pid for pid in processes("ServeReplica") if pid not in restarted)
    check_a_kill(url, killed, lambda: len(set(processes("ServeReplica")) - {killed}) == 2, unnoticed=STALE)


@pytest.mark.ingress
def test_a_replica_whose_engine_is_dead_for_good_is_replaced(url, restarted):
    """It has had its one restart in the test above."""
    wait_until(all_run, SOON)
    if not restarted:  # this test runs alone
        restarted.append(processes("ServeReplica")[0])
        killed = engine_of(restarted[0])
        check_a_kill(url, killed, lambda: len(set(processes("engine_main")) - {killed}) == 2)
    (first,) = restarted
    check_a_kill(
        url,
        engine_of(first),
        lambda: not Path(f"/proc/{first}").exists() and len(processes("ServeReplica")) == 2,
        unnoticed=0.3,
    )


@pytest.mark.ingress
def test_a_killed_proxy_is_started_again(url):
    """Its clients lose their connections, and the engines end those requests."""
    wait_until(all_run, SOON)
    victims = processes("haproxy -db") or processes("ProxyActor")
    body = {"text": "a", "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(lines)

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(answers, 60)
    wait_until(lambda: none_runs(url), 20)


def test_a_flag_that_is_wrong_is_named_before_anything_starts(cluster):
    with pytest.raises(ConfigError, match="tp-sise"):
        deploy(**SMALL, tp_sise=1)


@pytest.mark.ingress
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
    with Load(base, 8) as load:
        wait_until(lambda: len(processes("engine_main")) == 2, SOON)
        time.sleep(5)
        assert not lost(load.stop())
    with httpx.Client(base_url=base, timeout=100) as client:
        ends = time.monotonic() + SOON
        while len(processes("engine_main")) > 1:  # what runs while one of them goes is answered to its end
            assert time.monotonic() < ends
            assert stream(client, "Go on", 400).failure == ""
    assert httpx.get(f"{base}/health", timeout=30).status_code == 200


@pytest.mark.ingress
def test_what_runs_when_the_application_is_deleted_is_answered(cluster, url):
    with Load(f"{cluster}/llm", 2, max_tokens=600) as load:
        time.sleep(1.5)
        moment = time.monotonic()
        serve.delete("palladio")
        sent = [one for one in load.stop() if one.begun < moment]
    assert len(sent) >= 2
    assert not lost(sent)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_replicas_that_share_a_database_share_files_and_batches(cluster, tmp_path):
    """And a batch loses and doubles no line when one of them is killed."""
    database = PostgresServer.create()
    try:
        database.start()
        shared = {"database_url": database.url(), "database_lease": 4, "file_storage_path": str(tmp_path / "shared")}
        deploy(**SMALL, **shared, num_replicas=2)
        lines = [
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": CHAT,
                "body": {"model": "tiny", "messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 24},
            }
            for number in range(300)
        ]
        words = "\n".join(json.dumps(line) for line in lines).encode()
        client = httpx.Client(base_url=cluster, timeout=60)
        sent = client.post("/v1/files", files={"file": ("lines.jsonl", words)}, data={"purpose": "batch"}).json()
        assert {client.get(f"/v1/files/{sent['id']}").status_code for _ in range(10)} == {200}
        asked = {"input_file_id": sent["id"], "endpoint": CHAT, "completion_window": "24h"}
        batch = client.post("/v1/batches", json=asked).json()
        counts = "/v1/batches/" + batch["id"]
        wait_until(lambda: client.get(counts).json()["request_counts"]["completed"] > 20, SOON)
        os.kill(processes("ServeReplica")[0], signal.SIGKILL)

        def completed() -> bool:
            answer = client.get(counts)
            return answer.status_code == 200 and answer.json()["status"] == "completed"

        wait_until(completed, SOON)
        ended = client.get(counts).json()
        results = client.get(f"/v1/files/{ended['output_file_id']}/content").text.splitlines()
        ids = [json.loads(line)["custom_id"] for line in results]
        assert sorted(ids) == sorted(f"line-{number}" for number in range(300))
    finally:
        serve.delete("palladio")
        database.stop()
        database.remove()


def test_a_start_that_fails_says_why(cluster, tmp_path):
    with pytest.raises(RuntimeError):
        deploy(model_path=str(tmp_path / "nothing"), app_name="fails", route_prefix="/fails")
    (deployment,) = serve.status().applications["fails"].deployments.values()
    assert deployment.status == "DEPLOY_FAILED"
    assert str(tmp_path / "nothing") in deployment.message
    serve.delete("fails")


def test_a_serve_configuration_builds_it():
    built = app({"model_path": "default", "num_replicas": "2", "ui": "false"})
    assert type(built).__name__ == "Application"


def run(cluster: str, *command: str) -> str:
    """What a command prints, which has this cluster; it has to succeed."""
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        command, env=os.environ | address, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_configuration_of_the_docs_runs(cluster, tmp_path):
    (block,) = (block for block in blocks() if block.page == "docs/ray.md" and block.language == "json")
    config = json.loads(block.text)
    (application,) = config["applications"]
    assert application["args"].pop("num_gpus") == 1
    application["args"] |= SMALL | {"compile": "lazy"}
    file = tmp_path / "serve.json"
    file.write_text(json.dumps(config))
    run(cluster, "serve", "run", "--non-blocking", str(file))
    try:
        wait_until(lambda: httpx.get(f"{cluster}/v1/models", timeout=30).status_code == 200, SOON)
        assert httpx.get(f"{cluster}/v1/models", timeout=30).json()["data"][0]["id"] == "tiny"
        bad = subprocess.run(
            ["serve", "run", "palladio.ray:app", "model_path=default", "port=1"],
            env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert bad.returncode != 0
        assert "port has no effect under Ray Serve" in bad.stdout + bad.stderr
    finally:
        serve.delete("palladio")


LITTLE = "max_total_tokens=8192, context_length=1024, chunked_prefill_size=64"


@pytest.mark.parametrize("place", OF_RAY, ids=" ".join)
def test_block_of_the_docs(cluster, tmp_path, place):
    """The address, the model and the accelerator are those of this test."""
    (block,) = (block for block in blocks() if (block.page, block.heading, block.language) == (*place, "python"))
    text = re.sub(r",?\s*num_gpus=1", "", block.text)
    text = text.replace('model_path="Qwen/Qwen3-8B"', f'model_path="default", compile="lazy", {LITTLE}')
    text = text.replace('"Qwen/Qwen3-8B"', repr(str(default_model_path())))
    text = text.replace("max_running_requests=64", f'max_running_requests=8, compile="lazy", {LITTLE}')
    text = text.replace("http://127.0.0.1:30000", cluster)
    file = tmp_path / "block.py"
    file.write_text(text)
    if "build_processor" in text:
        deploy(model_path="default", compile="lazy", max_total_tokens=8192, context_length=1024)
    printed = run(cluster, sys.executable, str(file))
    assert re.fullmatch(OF_RAY[place], printed, re.DOTALL), printed
    if "deploy" in text or "build_processor" in text:
        assert httpx.get(f"{cluster}/health", timeout=30).status_code == 200
        serve.delete("palladio")


def test_slices_are_counted_as_ray_counts_them():
    """By Ray's own tables: chips of a host, names of slices."""
    from ray._private.accelerators.tpu import VALID_TPU_TYPES, get_chips_per_host, infer_tpu_pod_type_from_topology

    assert set(CORES_PER_CHIP) == set(VALID_TPU_TYPES)
    for generation in CORES_PER_CHIP:
        for topology in (
            ("2x2x1", "2x2x4", "4x4x4") if CORES_PER_CHIP[generation] == 2 else ("1x1", "2x2", "2x4", "4x4", "8x16")
        ):
            found = TpuSlice.of(generation, topology)
            assert found.chips_per_host == get_chips_per_host(topology, generation), (generation, topology)
            assert found.pod_type == infer_tpu_pod_type_from_topology(topology, f"TPU-{generation.upper()}")
