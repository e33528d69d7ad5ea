"""What the dashboard costs: the same streams with its history and a visitor, and without, turn by turn.

    python benchmarks/serving/dashboard_cost.py --streams 32 --tokens 150 --turns 16 --times 20

As in metrics_cost.py, front and engine run in this one process and share Python's lock, so whatever the dashboard takes
of either is missing from the tokens per second; in a server the front has a process of its own. While it is on, the
server takes a row of its history each second, and one visitor asks for everything once a second, for the pages and the
batches each third time, as the page does. That costs less than a busy machine's noise, so all of it is done `--times`
times as often; `cost` is the CPU time that this adds to a second of each thread, divided by `--times`. Besides, the
script times single questions: CPU time of the engine's thread for a snapshot and for a map of its pages, and of the
event loop for an answer with a whole hour.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.serving.metrics_cost import Load, Turn, turn
from benchmarks.support.report import quartiles
from palladio.flags.default_model import default_model_path
from palladio.http.app import create_app
from palladio.http.observability.dashboard import sampler
from palladio.http.observability.dashboard.history import SECONDS, History
from palladio.http.observability.dashboard.sampler import Sampler
from palladio.http.observability.dashboard.series import describe_history
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.process.transport import ThreadTransport

FIELDS = ("rate", "front", "engine")


async def visit(app: Any, query: str) -> int:
    """One question of a visitor; returns the bytes of the answer."""
    size = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, message
        size += len(message.get("body", b""))

    path = "/dashboard/data"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
    scope |= {"query_string": query.encode(), "http_version": "1.1", "scheme": "http"}
    scope |= {"server": ("x", 1), "client": ("y", 2)}
    await app(scope, receive, send)
    return size


@contextlib.asynccontextmanager
async def watched(app: Any, times: float) -> AsyncIterator[None]:
    """Run the history and a visitor, `times` times as often as usual."""
    history = app.state.sampler.history

    async def look() -> None:
        number = 0
        while True:
            is_rare = "true" if number % 3 == 0 else "false"
            rows = history.rows()
            since = rows[-1, 0] if number and len(rows) else 0.0
            await visit(app, f"since={since}&pages={is_rare}&batches={is_rare}")
            number += 1
            await asyncio.sleep(1.0 / times)

    await app.state.sampler.start()
    visitor = asyncio.create_task(look())
    try:
        yield
    finally:
        visitor.cancel()
        await asyncio.gather(visitor, return_exceptions=True)
        await app.state.sampler.stop()


async def cost_of(ask: Callable[[], Coroutine[Any, Any, object]], repeats: int = 50) -> dict[str, float]:
    """CPU time of one question, in µs: of the event loop's thread, and of the engine's."""
    (engine,) = [thread for thread in threading.enumerate() if thread.name == "palladio-engine"]
    assert engine.ident is not None
    clock = time.pthread_getcpuclockid(engine.ident)
    await ask()
    front, core = time.thread_time(), time.clock_gettime(clock)
    for _ in range(repeats):
        await ask()
    front, core = time.thread_time() - front, time.clock_gettime(clock) - core
    return {"front_us": 1e6 * front / repeats, "engine_us": 1e6 * core / repeats}


def fill(history: History) -> None:
    """With an hour of rows, each like the last one."""
    row = history.rows()[-1]
    for second in range(SECONDS + 400):
        history.append(row + np.concatenate([[second + 1.0], np.zeros(len(row) - 1)]))


async def measure_questions(app: Any, engine: AsyncEngine, num_pages: int) -> dict[str, Any]:
    history = app.state.sampler.history
    found: dict[str, Any] = {
        "snapshot": await cost_of(lambda: engine.stats()),
        "map": await cost_of(lambda: engine.stats(pages=True)) | {"pages": num_pages},
    }
    (one,) = (await engine.stats(pages=True)).pages
    found["map"]["engine_says_us"] = 1e6 * one.seconds
    found["answer"] = await cost_of(lambda: visit(app, f"since={time.time() - 1}"))
    fill(history)
    begun = time.thread_time()
    describe_history(history, 0.0)
    found["whole_hour"] = {"front_us": 1e6 * (time.thread_time() - begun), "rows": len(history.rows())}
    found["history_bytes"] = history.num_bytes
    return found


@contextlib.contextmanager
def hurried(times: float) -> Iterator[None]:
    """Sample and map apps that are made in this context `times` times as often as others."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(Sampler.__init__, "__defaults__", (sampler.INTERVAL / times,)))
        stack.enter_context(mock.patch.object(sampler, "MAP_INTERVAL", sampler.MAP_INTERVAL / times))
        stack.enter_context(mock.patch.object(sampler, "MAP_SHARE", sampler.MAP_SHARE * times))
        yield


async def measure(
    load: Load, num_turns: int, max_tokens: int, times: float
) -> tuple[dict[str, list[Turn]], dict[str, Any]]:
    config = EngineConfig.from_flags(
        {
            "model_path": str(default_model_path()),
            "max_running_requests": load.streams,
            "max_total_tokens": max(max_tokens, load.streams * (load.tokens + 2 * load.words + 64)),
            "decode_log_interval": 10_000,
            "compile": "full",
        }
    )
    engine = AsyncEngine(config, ThreadTransport())
    await engine.start()
    await engine.wait_ready()
    try:
        turns: dict[str, list[Turn]] = {"with": [], "without": []}
        with hurried(times):
            app = create_app(engine, HttpConfig())
            await turn(app, load)  # warms up
            for number in range(num_turns):
                for name in list(turns) if number % 2 else list(reversed(turns)):
                    async with watched(app, times) if name == "with" else contextlib.nullcontext():
                        turns[name].append(await turn(app, load))
        await app.state.sampler.start()
        await app.state.sampler.stop()
        return turns, await measure_questions(app, engine, engine.info.max_total_tokens // engine.info.page_size)
    finally:
        await engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--words", type=int, default=16, help="of each prompt")
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--times", type=float, default=20.0, help="as often as in a server")
    parser.add_argument("--max-total-tokens", type=int, default=262_144, help="of the KV cache: its pages are mapped")
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    load = Load(args.streams, args.tokens, args.words)
    turns, questions = asyncio.run(measure(load, args.turns, args.max_total_tokens, args.times))
    pairs = list(zip(turns["with"], turns["without"], strict=True))
    added = {
        "engine": [1e-6 * (one.engine - other.engine) * one.rate for one, other in pairs],
        "front": [1e-6 * (one.front - other.front) * one.rate for one, other in pairs],
    }
    report = {
        "load": dataclasses.asdict(load),
        "turns": args.turns,
        "times": args.times,
        "medians": {
            name: {field: statistics.median(getattr(one, field) for one in each) for field in FIELDS}
            for name, each in turns.items()
        },
        "rate_ratio": quartiles([one.rate / other.rate for one, other in pairs]),
        "engine_cpu_ratio": quartiles([one.engine / other.engine for one, other in pairs]),
        "cpu_ratio": quartiles([(one.front + one.engine) / (other.front + other.engine) for one, other in pairs]),
        "cost": {name: quartiles([cost / args.times for cost in costs]) for name, costs in added.items()},
        "questions": questions,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    print(json.dumps(report, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
