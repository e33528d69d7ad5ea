"""Thousands of chat requests at once, all cancelled after some seconds; or fewer, each of which must get its answer.

    python benchmarks/faults/torture.py --requests 5000 --cancel-after 10
    python benchmarks/faults/torture.py --requests 5000 --cancel-after 10 --cancel-by abort
    python benchmarks/faults/torture.py --finish --requests 400

The requests are those of SGLang's tutorial on cancelling a batch: another system message each, max_tokens 128. The
server is one of its own, with the limits that the tutorial's log shows, unless launch flags follow `--`. They are
cancelled by closing their connections, or by one /abort_request. Exit code 1 if

- a request ends in any other way than cancelled or answered in full;
- /health fails meanwhile, or takes longer than --patience seconds;
- afterwards anything runs, waits or holds tokens, a page is lost, something was compiled, or the server has ended;
- a new request is then not answered within --patience seconds;
- with --finish: not every request is answered. How long they waited for their first token is shown.
"""

import argparse
import asyncio
import collections
import dataclasses
import json
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.support.server_process import (
    add_server_arguments,
    chosen_server,
    exit_on_sigterm,
    provenance,
    usage_of_tree,
)
from palladio.load.client import text_of
from palladio.load.figures import percentile

TUTORIAL_LIMITS = ("--max-total-tokens", "20480", "--max-running-requests", "200")
MAX_TOKENS = 128
ENDS = ("answered", "cancelled")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        cancel_after: seconds; None: every request may finish.
        cancel_by: each client closes its connection, or one call aborts everything.
        patience: seconds that /health, and a new request afterwards, may take.
        limit: seconds for all of it.
    """

    requests: int
    cancel_after: float | None
    cancel_by: Literal["disconnect", "abort"] = "disconnect"
    patience: float = 10.0
    limit: float = 900.0
    max_tokens: int = MAX_TOKENS


@dataclasses.dataclass(slots=True)
class Fate:
    """The end of a request.

    Attributes:
        end: one of ENDS, or an error.
        sent, first: seconds from the start until it was sent, and until its first token came.
    """

    end: str = "cancelled"
    sent: float | None = None
    first: float | None = None
    tokens: int = 0


def raw_request(url: str, number: int, max_tokens: int) -> bytes:
    """One of the tutorial's requests as HTTP: a client library would take longer to send them than the server."""
    body = {
        "messages": [
            {"role": "system", "content": f"{number}: You are a helpful AI assistant"},
            {"role": "user", "content": "Write a detailed story about topic. Make it very long."},
        ],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


async def torture(url: str, plan: Plan) -> dict[str, Any]:
    """Runs the plan against a server; `violations` in the report is empty if the server stood it."""
    requests = [raw_request(url, i, plan.max_tokens) for i in range(plan.requests)]
    fates = [Fate() for _ in requests]
    health = HealthWatch(url)
    async with httpx.AsyncClient(base_url=url, timeout=plan.limit) as control:
        health.start()
        start = time.perf_counter()
        tasks = [
            asyncio.create_task(_one(url, request, plan.max_tokens, fate, start))
            for request, fate in zip(requests, fates, strict=True)
        ]
        await asyncio.wait(tasks, timeout=plan.limit if plan.cancel_after is None else plan.cancel_after)
        ended_before = sum(task.done() for task in tasks)
        cancelled = time.perf_counter()
        aborted = await _cancel(control, tasks, plan) if ended_before < plan.requests else 0
        stats, seconds_to_empty = await _wait_until_empty(control, cancelled, limit=60.0)
        await asyncio.to_thread(health.stop)
        seconds_to_answer, answer_error = await _ask_again(url, plan)
    ends = collections.Counter(fate.end for fate in fates)
    violations = [f"{count} requests ended with: {end}" for end, count in ends.items() if end not in ENDS]
    violations += health.errors
    if health.longest > plan.patience:
        violations.append(f"/health took {health.longest:.1f} s")
    wanted = {"num_running": 0, "num_waiting": 0, "num_used_tokens": 0, "integrity_error": None}
    wanted |= {"num_compiles_after_ready": 0}
    wrong = {name: stats.get(name) for name, value in wanted.items() if stats.get(name) != value}
    if wrong:
        violations.append(f"afterwards: {wrong}")
    if answer_error or seconds_to_answer > plan.patience:
        violations.append(f"a new request took {seconds_to_answer:.1f} s: {answer_error or 'too long'}")
    if plan.cancel_after is None and ends["answered"] != plan.requests:
        violations.append(f"{plan.requests - ends['answered']} requests were not answered")
    waits = [fate.first for fate in fates if fate.first is not None]
    return {
        "plan": dataclasses.asdict(plan),
        "ends": dict(ends),
        "ended_before_cancelling": ended_before,
        "aborted": aborted,
        "sent": sum(fate.sent is not None for fate in fates),
        "sent_by": max((fate.sent for fate in fates if fate.sent is not None), default=None),
        "started": len(waits),
        "seconds": cancelled - start,
        "completion_tokens": sum(fate.tokens for fate in fates),
        "wait_p50": percentile(waits, 50),
        "wait_p99": percentile(waits, 99),
        "wait_max": max(waits, default=None),
        "health_max": health.longest,
        "seconds_to_empty": seconds_to_empty,
        "seconds_to_answer": seconds_to_answer,
        "violations": violations,
    }


async def _one(url: str, request: bytes, max_tokens: int, fate: Fate, start: float) -> None:
    finish = None
    try:
        async for line in _lines(url, request, fate, start):
            event = json.loads(line)
            if "error" in event:
                fate.end = f"error: {event['error']['message'][:200]}"
                return
            for choice in event["choices"]:
                finish = choice["finish_reason"] or finish
                if fate.first is None and text_of(choice):
                    fate.first = time.perf_counter() - start
            if event.get("usage"):
                fate.tokens = event["usage"]["completion_tokens"]
    except (OSError, ValueError, KeyError) as error:
        fate.end = f"{type(error).__name__}: {error}"
        return
    is_full = finish == "stop" or (finish == "length" and fate.tokens == max_tokens)
    fate.end = "answered" if is_full else "cancelled" if finish == "abort" else f"finish_reason {finish}"


async def _lines(url: str, request: bytes, fate: Fate, start: float) -> AsyncIterator[bytes]:
    """Yield the JSON lines of an answer: of each event, or an error's body. A reader that stops early closes the
    connection."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(request)
        fate.sent = time.perf_counter() - start
        async for line in reader:
            text = line.strip().removeprefix(b"data: ")
            if text.startswith(b"{"):
                yield text
    finally:
        writer.transport.abort()


async def _cancel(control: httpx.AsyncClient, tasks: Sequence[asyncio.Task[None]], plan: Plan) -> int:
    """Cancels what has not ended; returns what /abort_request says that it aborted."""
    aborted = 0
    if plan.cancel_by == "abort" and plan.cancel_after is not None:
        response = await control.post("/abort_request", json={"abort_all": True})
        aborted = int(response.raise_for_status().json()["aborted"])
        await asyncio.wait(tasks, timeout=60)  # each now gets the end of its stream
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return aborted


class HealthWatch(threading.Thread):
    """Asks for /health twice a second.

    Attributes:
        longest: seconds that one answer took.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self.errors: list[str] = []
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._over.wait(0.5):
                start = time.perf_counter()
                try:
                    client.get("/health").raise_for_status()
                except httpx.HTTPError as error:
                    self.errors.append(f"/health: {type(error).__name__}: {error}")
                self.longest = max(self.longest, time.perf_counter() - start)

    def stop(self) -> None:
        self._over.set()
        self.join()


async def _wait_until_empty(client: httpx.AsyncClient, since: float, limit: float) -> tuple[dict[str, Any], float]:
    """The server's statistics once nothing runs (or after `limit` seconds), and how long that took."""
    while True:
        info = (await client.get("/get_server_info")).raise_for_status().json()
        stats: dict[str, Any] = info["internal_states"][0]
        seconds = time.perf_counter() - since
        if not (stats["num_running"] or stats["num_waiting"] or stats["num_used_tokens"]) or seconds > limit:
            return stats, seconds
        await asyncio.sleep(0.05)


async def _ask_again(url: str, plan: Plan) -> tuple[float, str]:
    """Seconds that one more request takes, and what is wrong with its answer."""
    fate = Fate()
    start = time.perf_counter()
    try:
        async with asyncio.timeout(plan.patience * 3):
            await _one(url, raw_request(url, plan.requests, 16), 16, fate, start)
    except TimeoutError:
        fate.end = "no answer"
    return time.perf_counter() - start, "" if fate.end == "answered" else fate.end


def allow_connections(count: int) -> None:
    """Let this process, and the server that it starts, open `count` connections.

    Raises:
        RuntimeError: the system does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RuntimeError(f"{count} connections take {needed} open files, and this process may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def show(report: dict[str, Any]) -> None:
    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    for end, count in sorted(report["ends"].items()):
        print(f"{count:>8} {end}")
    print(f"{report['sent']:>8} were sent, the last after {text(report['sent_by'])} s")
    print(f"{report['started']:>8} had their first token; {report['completion_tokens']} tokens in whole answers")
    waits = ", ".join(f"{name} {text(report[f'wait_{name}'])}" for name in ("p50", "p99", "max"))
    print(f"seconds: {report['seconds']:.1f} in all; until the first token: {waits}")
    print(
        f"seconds: /health at most {text(report['health_max'])}; empty after {report['seconds_to_empty']:.2f}; ", end=""
    )
    print(f"a new request {report['seconds_to_answer']:.2f}")
    if "rss" in report:
        print("RSS MiB: " + ", ".join(f"{name} {value / 2**20:.0f}" for name, value in report["rss"].items()))
    for violation in report["violations"]:
        print(f"VIOLATION {violation}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--cancel-after", type=float, default=10.0, help="seconds")
    parser.add_argument("--cancel-by", choices=("disconnect", "abort"), default="disconnect")
    parser.add_argument("--finish", action="store_true", help="do not cancel: wait for all answers")
    parser.add_argument("--rounds", type=int, default=1, help="do all of it so often, on one server")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds that one short answer may take")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that --finish may take")
    parser.add_argument("--output", type=Path, help="write the report here, as JSON")
    add_server_arguments(parser, TUTORIAL_LIMITS)
    args = parser.parse_args(argv)
    exit_on_sigterm()
    plan = Plan(
        requests=args.requests,
        cancel_after=None if args.finish else args.cancel_after,
        cancel_by=args.cancel_by,
        patience=args.patience,
        limit=args.limit,
    )
    allow_connections(plan.requests)
    rounds = []
    with chosen_server(args) as server:
        for _ in range(args.rounds):
            pid = None if server.process is None else server.process.pid
            before = None if pid is None else usage_of_tree(pid).rss
            report = asyncio.run(torture(server.url, plan))
            if pid is not None and before is not None:
                report["rss"] = {"before": before, "after": usage_of_tree(pid).rss}
            if not server.is_alive:
                report["violations"].append("the server's process has ended")
            show(report)
            rounds.append(report)
    if args.output:
        text = json.dumps(provenance() | {"rounds": rounds}, indent=2)
        args.output.write_text(text + "\n", encoding="utf-8")
    return 1 if any(report["violations"] for report in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
