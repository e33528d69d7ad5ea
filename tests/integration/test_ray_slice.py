"""A replica over the two hosts of a slice: two nodes of Ray on this machine, whose TPUs are made up, with CPUs behind.
See `make ray`."""

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make ray` has an environment with it")

import ray
from ray import serve
from ray.cluster_utils import Cluster

from palladio.ray import deploy
from palladio.ray.hosts import SLICE_LABEL
from palladio.utils import _descendants
from tests.integration.ray_cluster import CHAT, MEMORY, SMALL, processes, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
HEAD = "TPU-v4-16-head"
BODY = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8, "temperature": 0}


@pytest.fixture
def url():
    """Nodes of a slice, and one more node with TPUs that is of none."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cluster = Cluster()
    node = {"num_cpus": 2, "object_store_memory": MEMORY, "include_dashboard": False}
    chips = {"TPU": 4}
    cluster.add_node(**node, resources={**chips, HEAD: 1}, labels={SLICE_LABEL: "mine"})
    cluster.add_node(**node, resources=chips, labels={SLICE_LABEL: "another"})
    cluster.add_node(**node, resources=chips, labels={SLICE_LABEL: "mine"})
    ray.init(address=cluster.address, log_to_driver=bool(os.environ.get("PALLADIO_RAY_LOG")))
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def other_hosts() -> list[int]:
    return processes("palladio.server.worker_host_process")


def test_a_replica_on_two_hosts_answers_and_starts_again_with_both(url):
    deploy(**SMALL, tpu="v4", tpu_topology="2x2x2", tp_size=2, device="cpu")
    (other,) = other_hosts()
    groups = {pid for pid in processes("WorkerHost") if other in _descendants(pid)}
    assert len(groups) == 1
    (used,) = (node for node in ray.nodes() if node["Labels"].get(SLICE_LABEL) == "another")
    free = ray.available_resources()
    assert free["TPU"] == used["Resources"]["TPU"] == 4, "the node of another slice is not touched"
    assert HEAD not in free
    said = httpx.post(url + CHAT, json=BODY, timeout=60).json()["choices"][0]["message"]["content"]
    assert "Paris" in said
    os.kill(other, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{other}").exists() and len(other_hosts()) == 1, 150)
    wait_until(lambda: httpx.get(f"{url}/health", timeout=30).status_code == 200, 150)
    again = httpx.post(url + CHAT, json=BODY, timeout=60).json()["choices"][0]["message"]["content"]
    assert again == said
    serve.delete("palladio")
    wait_until(lambda: not other_hosts(), 30)
    wait_until(lambda: ray.available_resources().get("TPU") == 12, 30)
