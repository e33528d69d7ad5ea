"""palladio.ray on a real cluster with two replicas: every route, kills under load, scaling, drain. See `make ray`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make ray` has an environment with it")

import ray
from ray import serve

from palladio.default_model import default_model_path
from palladio.ray import app, deploy
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


def run(cluster: str, *command: str) -> str:
    """What a command prints, which has this cluster; it has to succeed."""
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        command, env=os.environ | address, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
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
        wait_until(lambda: httpx.get(f"{cluster}/v1/models", timeout=30).status_code == 200, 60)
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
