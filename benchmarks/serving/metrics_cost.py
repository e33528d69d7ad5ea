"""What metrics, timings and explanations cost: the same streams with and without them, turn by turn.

    python benchmarks/serving/metrics_cost.py --streams 32 --tokens 32 --turns 40

Front and engine run in this one process, with a tiny random model and without sockets, and the streams are read by
plain ASGI calls. So nothing hides the cost: whatever the noting takes, of the engine's thread or of the event loop, is
missing from the tokens per second. In a server it is spread over two processes and hidden behind the device. Turns are
short and many, so that both sides meet the same neighbours on a busy machine.
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
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import orjson

from benchmarks.support.report import quartiles
from palladio.flags.default_model import default_model_path
from palladio.http.app import create_app
from palladio.http.generation.output_stream import OutputStream
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.core.watch.step_logger import StepTracer
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.requests import samples
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.request_trace import RequestTrace, WaitTimes
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.scheduling.policy.queue_time import QueueTime
from palladio.runtime.scheduling.state.request import Request


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of both sides.

    Attributes:
        streams: streams at once.
        tokens: tokens of each.
        words: words of each prompt.
    """

    streams: int
    tokens: int
    words: int


class SwitchedTracer:
    """The engine's tracer, with a switch; its hooks are bound when the engine is made."""

    def __init__(self) -> None:
        self.is_on = True

    def installed(self) -> contextlib.ExitStack:
        """To be entered before the engine is made."""
        stack = contextlib.ExitStack()
        for name in ("after_dispatch", "before_process"):
            stack.enter_context(mock.patch.object(StepTracer, name, self._switched(vars(StepTracer)[name])))
        return stack

    def _switched(self, hook: Callable[..., None]) -> Callable[..., None]:
        def switched(*args: Any) -> None:
            if self.is_on:
                hook(*args)

        return switched


TRACER = SwitchedTracer()


@contextlib.contextmanager
def nothing_noted() -> Iterator[None]:
    """Takes the noting out, in the engine and in the front; to be entered and left while nothing runs."""
    trace, waits = RequestTrace(), WaitTimes()

    def skip(*args: Any, **kwargs: Any) -> None:
        return None

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (QueueTime, "advance", skip),
        (QueueTime, "join", lambda *_: waits),
        (QueueTime, "leave", lambda *_: waits),
        (Request, "trace_so_far", lambda *_: trace),
        (OutputStream, "_begin_record", skip),
    ]
    clock = types.SimpleNamespace(time=time.time, perf_counter=lambda: 0.0)
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(mock.patch.object(samples, "time", clock))
        stack.enter_context(mock.patch.object(TRACER, "is_on", False))
        yield


async def stream(app: Any, body: dict[str, Any]) -> None:
    """One streamed completion, read to its end."""
    raw, gone = orjson.dumps(body), asyncio.Event()
    messages = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    ended = False

    async def send(message: dict[str, Any]) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        else:
            ended = ended or message["body"].endswith(b"data: [DONE]\n\n")

    path = "/v1/completions"
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("x", 1), "client": ("y", 2)}
    await app(scope, receive, send)
    assert ended, "the stream did not end"


@dataclasses.dataclass(frozen=True)
class Turn:
    """Figures of one round.

    Attributes:
        rate: tokens per second of all streams together.
        front, engine: CPU time per token of the event loop's thread and of the engine's, in µs: other programs of a
            busy machine hardly affect it.
    """

    rate: float
    front: float
    engine: float


async def turn(app: Any, load: Load) -> Turn:
    bodies = [
        {
            "prompt": f"{number} " + "word " * load.words,
            "max_tokens": load.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        for number in range(load.streams)
    ]
    (engine,) = [thread for thread in threading.enumerate() if thread.name == "palladio-engine"]
    assert engine.ident is not None
    clock = time.pthread_getcpuclockid(engine.ident)
    begun, front, core = time.perf_counter(), time.thread_time(), time.clock_gettime(clock)
    await asyncio.gather(*(stream(app, body) for body in bodies))
    seconds, front, core = time.perf_counter() - begun, time.thread_time() - front, time.clock_gettime(clock) - core
    count = load.streams * load.tokens
    return Turn(count / seconds, 1e6 * front / count, 1e6 * core / count)


async def measure(load: Load, num_turns: int) -> dict[str, list[Turn]]:
    config = EngineConfig.from_flags(
        {
            "model_path": str(default_model_path()),
            "max_running_requests": load.streams,
            "max_total_tokens": load.streams * (load.tokens + 2 * load.words + 64),
            "decode_log_interval": 10_000,
            "compile": "full",
        }
    )
    with TRACER.installed():
        engine = AsyncEngine(config, ThreadTransport())
        await engine.start()
        await engine.wait_ready()
    try:
        app = create_app(engine, HttpConfig())
        await turn(app, load)  # warms up
        turns: dict[str, list[Turn]] = {"noted": [], "not noted": []}
        for number in range(num_turns):
            order = list(turns) if number % 2 else list(reversed(turns))
            for name in order:
                with nothing_noted() if name == "not noted" else contextlib.nullcontext():
                    turns[name].append(await turn(app, load))
        return turns
    finally:
        await engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--words", type=int, default=16, help="of each prompt")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    load = Load(args.streams, args.tokens, args.words)
    turns = asyncio.run(measure(load, args.turns))
    pairs = list(zip(turns["noted"], turns["not noted"], strict=True))
    fields = ("rate", "front", "engine")
    report = {
        "load": dataclasses.asdict(load),
        "turns": args.turns,
        "medians": {
            name: {field: statistics.median(getattr(one, field) for one in each) for field in fields}
            for name, each in turns.items()
        },
        "rate_ratio": quartiles([noted.rate / plain.rate for noted, plain in pairs]),
        "added_front_us_per_token": quartiles([noted.front - plain.front for noted, plain in pairs]),
        "added_engine_us_per_token": quartiles([noted.engine - plain.engine for noted, plain in pairs]),
        "cpu_ratio": quartiles([(noted.front + noted.engine) / (plain.front + plain.engine) for noted, plain in pairs]),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    print(json.dumps(report, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
