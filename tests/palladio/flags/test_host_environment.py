"""Which hosts belong together, where LeaderWorkerSet, GKE or a TPU VM says it."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from palladio.flags.host_environment import find_hosts
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError

LWS = {"LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2", "LWS_LEADER_ADDRESS": "serve-0.serve.default"}
GKE = {"TPU_WORKER_HOSTNAMES": "tpu-0.tpu,tpu-1.tpu", "TPU_WORKER_ID": "1"}
METADATA = {
    "agent-worker-number": "3",
    "worker-network-endpoints": ",".join(f"u{i}:x:10.0.0.{i + 2}" for i in range(4)),
}


@pytest.fixture
def metadata_server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            is_known = name in METADATA and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if is_known else 404)
            self.end_headers()
            self.wfile.write(METADATA.get(name, "").encode())

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (LWS, (4, 2, "serve-0.serve.default:8478")),
        (GKE, (2, 1, "tpu-0.tpu:8478")),
        (LWS | GKE, (4, 2, "serve-0.serve.default:8478")),
        ({**LWS, "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}, (None, None, None)),
        ({**GKE, "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_what_the_environment_says(environment, expected):
    found = find_hosts(ParallelConfig(), environment)
    assert (found.nnodes, found.node_rank, found.dist_init_addr) == expected


def test_flags_go_first():
    given = ParallelConfig(nnodes=2, node_rank=0, dist_init_addr="10.0.0.1:5000")
    assert find_hosts(given, LWS) == given
    assert find_hosts(ParallelConfig(nnodes=1), LWS).num_hosts == 1
    found = find_hosts(ParallelConfig(dist_init_addr="10.0.0.1:5000"), LWS)
    assert (found.nnodes, found.node_rank, found.dist_init_addr) == (4, 2, "10.0.0.1:5000")
    assert find_hosts(ParallelConfig(nnodes=4, node_rank=1), LWS).node_rank == 1


def test_a_tpu_vm_is_asked_for_several_hosts_only(metadata_server):
    environment = {"GCE_METADATA_HOST": metadata_server}
    found = find_hosts(ParallelConfig(nnodes=4), environment)
    assert (found.nnodes, found.node_rank, found.dist_init_addr) == (4, 3, "10.0.0.2:8478")
    assert find_hosts(ParallelConfig(), environment) == ParallelConfig()


def test_contradictions_are_named(metadata_server):
    with pytest.raises(ConfigError, match="--nnodes 3 does not match the 4 hosts"):
        find_hosts(ParallelConfig(nnodes=3), LWS)
    with pytest.raises(ConfigError, match="--nnodes 2 does not match the 4 hosts"):
        find_hosts(ParallelConfig(nnodes=2), {"GCE_METADATA_HOST": metadata_server})
    with pytest.raises(ConfigError, match="LWS_GROUP_SIZE must be a number, got 'many'; set --nnodes"):
        find_hosts(ParallelConfig(), {**LWS, "LWS_GROUP_SIZE": "many"})


def test_where_nothing_says_it_the_flags_are_asked_for():
    parallel = find_hosts(ParallelConfig(nnodes=2), {"GCE_METADATA_HOST": "127.0.0.1:1"})
    assert parallel == ParallelConfig(nnodes=2)
