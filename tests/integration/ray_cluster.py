"""A Ray cluster of this process's own, and the requests that its tests send. Needs Ray: `make ray`."""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import ray
from ray import serve

from palladio.utils import _descendants

MEMORY = 200 * 2**20  # bytes of the object store
HAPROXY_FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "METRICS_SOCKET_PATH": "metrics.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
}
SMALL = {  # the embedded model, quick to start
    "model_path": "default",
    "served_model_name": "tiny",
    "page_size": 8,
    "max_running_requests": 4,
    "chunked_prefill_size": 64,
    "context_length": 1024,
    "max_total_tokens": 8192,
    "compile": "full",
    "cuda_graph_bs": 1,
}
CHAT = "/v1/chat/completions"


@contextlib.contextmanager
def ray_cluster(num_cpus: int = 2) -> Iterator[str]:
    """Yields the URL of Serve's proxy. All processes of the cluster end with it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Else Ray ends its own processes, the controller first, while other programs fill the memory of the host.
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - as Ray spells it
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as of_metrics:
        port = free.getsockname()[1]
        os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"] = str(of_metrics.getsockname()[1])
    folder = tempfile.mkdtemp()
    for name, file in HAPROXY_FILES.items():  # else in a folder of all users
        os.environ[f"RAY_SERVE_HAPROXY_{name}"] = str(Path(folder, file))
    before = set(_descendants(os.getpid()))
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        num_cpus=num_cpus,
        object_store_memory=MEMORY,
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("PALLADIO_RAY_LOG")),
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
    finally:
        started = set(_descendants(os.getpid())) - before
        serve.shutdown()
        ray.shutdown()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in started):
            time.sleep(0.1)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes(word: str) -> list[int]:
    """Processes of this cluster with this word in their command line: "ServeReplica", "engine_main"."""
    found = []
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(pid)
    return found


def engine_of(replica: int) -> int:
    return next(pid for pid in processes("engine_main") if pid in _descendants(replica))


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request. begun, ended: seconds, monotonic. failure: ""; none. num_tokens: that were generated."""

    begun: float
    ended: float
    failure: str
    num_tokens: int


class Load:
    """Streams of chat, `width` at a time, one after another, until `stop`, or the end of `with`."""

    def __init__(self, url: str, width: int, max_tokens: int = 48) -> None:
        self.sent: list[Sent] = []
        self._url, self._max_tokens = url, max_tokens
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,), daemon=True) for index in range(width)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[Sent]:
        """Ends when the last request has; it may be called again. Returns all requests."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a request never ended"
        return self.sent

    def _run(self, index: int) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=100) as client:
            while not self._is_over.is_set():
                number += 1
                self.sent.append(stream(client, f"Say {index} and {number}", self._max_tokens))


def stream(client: httpx.Client, text: str, max_tokens: int) -> Sent:
    """Sends one and reads it to its end."""
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun, failure, num_tokens, last = time.monotonic(), "", 0, ""
    try:
        with client.stream("POST", CHAT, json=body) as answer:
            if answer.status_code != 200:
                failure = f"{answer.status_code} {answer.read().decode()[:200]}"
            for line in () if failure else answer.iter_lines():
                if line.startswith("data: "):
                    last = line
                    if '"error"' in line:
                        failure = line[:200]
                    if '"completion_tokens":' in line:
                        num_tokens = int(line.split('"completion_tokens":')[1].split(",")[0].split("}")[0])
    except httpx.HTTPError as error:
        failure = f"{type(error).__name__}: {error}"
    if not failure and last != "data: [DONE]":
        failure = "the stream was cut"
    if not failure and num_tokens != max_tokens:
        failure = f"{num_tokens} tokens in place of {max_tokens}"
    return Sent(begun, time.monotonic(), failure, num_tokens)
