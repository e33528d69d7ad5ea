"""Tokens per second of two replicas on Ray Serve, beside two bare servers on the same cores with the same flags.

    .venv-ray/bin/python benchmarks/serving/ray_serve.py --out ray_serve.json
    RAY_SERVE_ENABLE_HA_PROXY=1 .venv-ray/bin/python benchmarks/serving/ray_serve.py --out ray_serve_haproxy.json

Both run all the time and take turns under the same load: WIDTH requests at a time, to Serve's proxy, or half of them to
each server. `streams` has an event for each token; `whole` has answers in one piece. Ratios are replicas ÷ servers of
the same turn. Ray has no cores of its own: its proxy and its daemons take from those of the engines. `cpu` is where the
time goes: microseconds of CPU a token, of each kind of process. Variables named RAY_SERVE_… are Serve's, and told.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import ray
from ray import serve

from benchmarks.support.report import quartiles, report
from benchmarks.support.server_process import (
    cpu_seconds_by_kind,
    exit_on_sigterm,
    free_port,
    palladio_command,
    running_server,
)
from palladio.load.client import Target, find_model
from palladio.load.http_client import HttpClient
from palladio.load.runner import Pace, run_asks
from palladio.load.workloads import Ask
from palladio.ray import deploy

FLAGS: dict[str, Any] = {
    "page_size": 16,
    "max_running_requests": 8,
    "chunked_prefill_size": 128,
    "context_length": 1024,
    "max_total_tokens": 16384,
    "cuda_graph_bs": 8,
    "random_seed": 1,
    "disable_radix_cache": True,
}
LIMIT = 60.0  # seconds for one load
KINDS = {  # word of a command line → what it is
    "benchmarks/serving/ray_serve.py": "client",
    "engine_main": "engines",
    "ServeReplica": "HTTP processes",
    "palladio serve": "HTTP processes",
    "ProxyActor": "proxy",
    "haproxy": "proxy",
}
Measure = Callable[[Sequence[Target], argparse.Namespace, int], Awaitable[float]]


@contextlib.contextmanager
def two_replicas() -> Iterator[str]:
    """Yields the address of Serve's proxy."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    port = free_port()
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        num_cpus=2,
        object_store_memory=200 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    exit_on_sigterm()  # Ray has put its own handler there
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        deploy(model_path="default", compile="full", num_replicas=2, **FLAGS)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


async def streams(targets: Sequence[Target], args: argparse.Namespace, seed: int) -> float:
    """Tokens per second of streams, an equal share of them to each target."""

    async def share(target: Target, first: int) -> int:
        asks = [Ask(f"Tell me about {seed} and {number}", args.max_tokens) for number in range(first, args.requests)]
        async with target.client() as client:
            width = Pace(concurrency=args.width // len(targets))
            figures = await run_asks(target, client, asks[:: len(targets)], width, LIMIT)
        if figures["failures"]:
            raise RuntimeError(f"{target.base_url}: {figures['errors']}")
        return int(figures["completion_tokens"])

    begun = time.perf_counter()
    counts = await asyncio.gather(*(share(target, first) for first, target in enumerate(targets)))
    return sum(counts) / (time.perf_counter() - begun)


async def whole(targets: Sequence[Target], args: argparse.Namespace, seed: int) -> float:
    """The same of answers in one piece."""
    gates = [asyncio.Semaphore(args.width // len(targets)) for _ in targets]

    async def one(number: int, clients: Sequence[HttpClient]) -> int:
        place = number % len(targets)
        body = targets[place].body(f"Tell me about {seed} and {number}", args.max_tokens)
        async with (
            gates[place],
            clients[place].stream(
                "POST", targets[place].path, body | {"stream": False, "stream_options": None}
            ) as said,
        ):
            words = await said.read()
        if said.status != 200:
            raise RuntimeError(f"{targets[place].base_url}: {said.status} {words[:200]!r}")
        return int(args.max_tokens)

    begun = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(target.client()) for target in targets]
        counts = await asyncio.gather(*(one(number, clients) for number in range(args.requests)))
    return sum(counts) / (time.perf_counter() - begun)


async def measure(replicas: str, servers: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    async def named(url: str) -> Target:
        target = Target(f"{url}/v1")
        async with target.client() as client:
            return await find_model(target, client)

    on_ray = [await named(replicas)]
    bare = [await named(url) for url in servers]
    result: dict[str, Any] = {}
    for name, load in (("streams", streams), ("whole", whole)):
        for targets in (on_ray, bare):  # until connections and caches are warm
            await load(targets, args, -1)
        turns = []
        seconds: dict[str, dict[str, float]] = {"replicas": {}, "servers": {}}
        for turn in range(args.turns):
            pair = {
                "replicas": await with_cpu(load, on_ray, args, turn, seconds["replicas"]),
                "servers": await with_cpu(load, bare, args, turn, seconds["servers"]),
            }
            turns.append({key: round(rate, 1) for key, rate in pair.items()})
        ratios = [turn["replicas"] / turn["servers"] for turn in turns]
        tokens = args.turns * args.requests * args.max_tokens
        cpu = {
            side: {kind: round(1e6 * spent / tokens, 1) for kind, spent in sorted(kinds.items())}
            for side, kinds in seconds.items()
        }
        result[name] = {"tokens_per_second": turns, "ratio": quartiles(ratios), "cpu": cpu}
    return result


async def with_cpu(
    load: Measure, targets: Sequence[Target], args: argparse.Namespace, turn: int, seconds: dict[str, float]
) -> float:
    """Tokens per second; adds to `seconds` what each kind of process took of CPU."""
    before = cpu_seconds_by_kind(os.getpid(), KINDS, "the rest of Ray")
    rate = await load(targets, args, turn)
    for kind, spent in cpu_seconds_by_kind(os.getpid(), KINDS, "the rest of Ray").items():
        seconds[kind] = seconds.get(kind, 0.0) + spent - before.get(kind, 0.0)
    return rate


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16, help="requests at a time, an even number")
    parser.add_argument("--requests", type=int, default=48, help="of one load")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    exit_on_sigterm()
    words = [word for name, value in FLAGS.items() for word in _words(name, value)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = palladio_command(None, words)
        servers = [stack.enter_context(running_server(command, folder / f"log{index}")) for index in range(2)]
        replicas = stack.enter_context(two_replicas())
        result = asyncio.run(measure(replicas, [server.url for server in servers], args))
    settings = {name: value for name, value in os.environ.items() if name.startswith("RAY_SERVE_")}
    versions = {"ray": ray.__version__, "cores": os.cpu_count(), "flags": FLAGS, "environment": settings}
    report("serving/ray_serve.py", argv, {**versions, **result}, args.out)
    return 0


def _words(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]


if __name__ == "__main__":
    sys.exit(main())
