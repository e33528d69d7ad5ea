"""What the HTTP process costs by itself: events per second of many streams, and the time that it adds to a token.

    python benchmarks/serving/front.py --streams 64 --tokens 400 --turns 5
    python benchmarks/serving/front.py --streams 64 --interval-ms 20  # at a rate that it keeps up with: latency
    python benchmarks/serving/front.py --streams 128 --interval-ms 20 --engine-process  # CPU of an event and a start

The engine is fake and lives in the server's event loop: each step is encoded and decoded as it is between the real
processes, and every stream gets one token of it. All else is the server: AsyncEngine, detokenizer, routes, uvicorn.
The client reads raw sockets and counts events; it shares the machine's cores with the server. With --engine-process,
the fake engine is a process of its own, as the real one is, and the CPU time of the HTTP process is measured.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.serving.front_processes import FrontServer
from benchmarks.support.report import report
from palladio.flags.default_model import default_model_path
from palladio.http.server import serve_async
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import AbortRequests, FromEngine, Shutdown, StepOutputs, ToEngine
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.outputs.token_output import FinishReason, PlainTokens, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.codec import from_engine_codec, to_engine_codec
from palladio.runtime.process.transport import Receive
from palladio.utils import wait_for_server

VOCAB_SIZE = 2048
MARK = b"data: {"
TOKEN = re.compile(rb'"token_ids":\[(\d+)\]')
FIRST_ID = 300


class FakeTransport:
    """A fake engine that makes a token for every running request at each step.

    Args:
        interval: seconds between steps; 0: as fast as the event loop runs.
        steps: gets the time of each step, in ns since boot.
    """

    shares_interpreter = True

    def __init__(self, interval: float, steps: Any) -> None:
        self._interval = interval
        self._steps = steps
        self._left: dict[str, int] = {}
        self._from, self._to = from_engine_codec(), to_engine_codec()
        self._work = asyncio.Event()

    def start(self, config: EngineConfig, receive: Receive) -> None:
        ready = EngineReady(
            *(8192, 1 << 20, 4096, 512, 16, "fake", "FakeForCausalLM", VOCAB_SIZE, [2], "cpu", "float32", 0, 0.0, 0, 1)
        )
        asyncio.get_running_loop().call_soon(receive, ready)
        self._task = asyncio.create_task(self._run(receive))

    def send(self, message: ToEngine) -> None:
        message = self._to.decode(self._to.encode(message))
        if isinstance(message, GenerationRequest):
            assert message.params.max_tokens is not None
            self._left[message.request_id] = message.params.max_tokens
            self._work.set()
        elif isinstance(message, AbortRequests):
            for request_id in message.request_ids:
                self._left.pop(request_id, None)
        else:
            assert isinstance(message, Shutdown)

    async def stop(self, timeout: float) -> None:
        self._task.cancel()

    async def _run(self, receive: Receive) -> None:
        number = 0
        while True:
            if not self._left:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(self._interval)
            number += 1
            token_ids = [FIRST_ID + number % 1000]
            ended = [request_id for request_id, left in self._left.items() if left == 1]
            outputs = [TokenOutput(request_id, token_ids, finish=FinishReason("length")) for request_id in ended]
            self._left = {request_id: left - 1 for request_id, left in self._left.items() if left > 1}
            plain = PlainTokens.of(list(self._left), [token_ids] * len(self._left), len(outputs))
            frame = self._from.encode(StepOutputs(outputs, [plain]))
            self._steps.append(time.monotonic_ns())
            message: FromEngine = self._from.decode(frame)
            receive(message)


def run_server(port: int, model: str, interval: float, pipe: Any) -> None:
    """A server in a process of its own; whenever asked, it sends the times of its steps and the CPU time it took."""

    async def run() -> None:
        steps: list[int] = []
        config = EngineConfig.from_flags({"model_path": model})
        engine = AsyncEngine(config, FakeTransport(interval, steps))
        serving = asyncio.create_task(serve_async(engine, HttpConfig(port=port, log_level="warning")))
        while await asyncio.get_running_loop().run_in_executor(None, pipe.recv):
            pipe.send((steps, time.process_time()))
        serving.cancel()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def read_stream(port: int, route: bytes, body: bytes, arrivals: list[tuple[int, int]] | None) -> int:
    """Counts the events of one stream; notes each token's id and when it came, if asked to."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head % route + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    count, tail = 0, b""
    while data := await reader.read(1 << 16):
        text = tail + data
        new = text.count(MARK)
        count += new
        tail = text[-len(MARK) + 1 :]
        if arrivals is not None:
            now = time.monotonic_ns()
            arrivals += [(int(token_id), now) for token_id in TOKEN.findall(data)]
    writer.close()
    assert count > 1, "the server refused the request"
    return count


PROMPTS: dict[str, dict[str, Any]] = {  # by route
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
}


async def turn(port: int, args: argparse.Namespace, arrivals: list[list[tuple[int, int]]] | None) -> dict[str, float]:
    fields = {**PROMPTS[args.route], "max_tokens": args.tokens, "stream": True}
    body = json.dumps({**fields, "return_token_ids": arrivals is not None, **args.body}).encode()
    start, route = time.perf_counter(), args.route.encode()
    noted: Sequence[list[tuple[int, int]] | None] = arrivals or [None] * args.streams
    counts = await asyncio.gather(*(read_stream(port, route, body, noted[i]) for i in range(args.streams)))
    seconds = time.perf_counter() - start
    return {"events": sum(counts), "seconds": seconds, "events_per_second": sum(counts) / seconds}


async def measure(
    port: int, args: argparse.Namespace, look: Callable[[], float]
) -> tuple[list[dict[str, float]], list[list[tuple[int, int]]]]:
    await asyncio.to_thread(wait_for_server, f"http://127.0.0.1:{port}", 60)
    if args.interval_ms:
        arrivals: list[list[tuple[int, int]]] = [[] for _ in range(args.streams)]
        return [await turn(port, args, arrivals)], arrivals
    await turn(port, args, None)
    turns = []
    for _ in range(args.turns):
        before = look()
        turns.append(await turn(port, args, None))
        turns[-1]["server_cpu_us_per_event"] = 1e6 * (look() - before) / turns[-1]["events"]
    return turns, []


def measure_process(args: argparse.Namespace) -> dict[str, Any]:
    """Measure microseconds of CPU for an event, of the HTTP process and of the engine's. Each round first has requests
    of two tokens: their cost is a request's start, except their events; the additional cost of longer ones is that of
    events alone."""
    server = FrontServer(args.port, args.interval_ms / 1e3)
    try:
        wait_for_server(f"http://127.0.0.1:{args.port}", 60)
        turns = [one_turn(args, server) for _ in range(1 + args.turns)][1:]  # the first one warms up
    finally:
        server.stop()
    return {f"{name}_median": statistics.median(one[name] for one in turns) for name in turns[0]} | {"turns": turns}


def one_turn(args: argparse.Namespace, server: FrontServer) -> dict[str, float]:
    spent, found = [], []
    for tokens in (2, args.tokens):
        before = server.cpu_seconds()
        found.append(asyncio.run(turn(args.port, argparse.Namespace(**{**vars(args), "tokens": tokens}), None)))
        spent.append(server.cpu_seconds() - before)
    (short, long), (of_short, of_long) = found, spent
    event = (of_long.front - of_short.front) / (long["events"] - short["events"])
    return {
        "cpu_us_per_event": 1e6 * event,
        "kernel_us_per_event": 1e6 * (of_long.kernel - of_short.kernel) / (long["events"] - short["events"]),
        "cpu_us_per_start": 1e6 * (of_short.front - event * short["events"]) / args.streams,
        "cpu_us_per_event_and_start": 1e6 * of_long.front / long["events"],
        "engine_cpu_us_per_event": 1e6 * of_long.engine / long["events"],
        "events_per_second": long["events_per_second"],
    }


def added_latency(steps: list[int], arrivals: list[list[tuple[int, int]]]) -> dict[str, float]:
    """Return milliseconds from a step to its tokens at the client; a token's id names the step, of which there are <
    1000."""
    assert len(steps) < 1000, "fewer --tokens, please"
    delays = [1e-6 * (came - steps[token_id - FIRST_ID - 1]) for stream in arrivals for token_id, came in stream]
    return {f"p{q}": float(np.percentile(delays, q)) for q in (50, 90, 99)} | {"count": len(delays)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--interval-ms", type=float, default=0.0, help="between steps; 0: as fast as it goes")
    parser.add_argument(
        "--engine-process", action="store_true", help="the engine is a process of its own: CPU time of the other one"
    )
    parser.add_argument("--route", default="/v1/chat/completions", choices=list(PROMPTS))
    parser.add_argument("--body", type=json.loads, default={}, help="JSON: more fields of the requests")
    parser.add_argument("--port", type=int, default=31987)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    model = str(default_model_path())
    if args.engine_process:
        report("serving/front.py", argv, measure_process(args), args.out)
        return 0
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(args.port, model, args.interval_ms / 1e3, theirs), daemon=True
    )
    process.start()

    def look() -> float:
        ours.send(True)
        return float(ours.recv()[1])

    try:
        turns, arrivals = asyncio.run(measure(args.port, args, look))
        ours.send(True)
        steps, _ = ours.recv()
    finally:
        process.kill()
    rates = [one["events_per_second"] for one in turns]
    result: dict[str, Any] = {
        "events_per_second_median": statistics.median(rates),
        "turns": turns,
    }
    if args.interval_ms:
        result["added_latency_ms"] = added_latency(steps, arrivals)
    report("serving/front.py", argv, result, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
