"""What a batch costs: its lines/s beside the same requests sent by hand, and what interactive requests notice of it.

    python benchmarks/serving/batches.py throughput --lines 1000 --turns 3
    python benchmarks/serving/batches.py latency --lines 5000 --seconds 20 --turns 3

Both sides take turns on one server, so that a noisy machine disturbs both alike; ratios are of medians over the turns.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.support.report import report
from benchmarks.support.server_process import add_server_arguments, chosen_server, exit_on_sigterm
from palladio.load.client import Answer, Target, ask
from palladio.load.figures import percentile

ENDED = ("completed", "failed", "expired", "cancelled")
TOPICS = ("a river", "an engine", "the moon", "a market", "a library", "old maps", "a violin", "the sea")


def body_of(number: int, max_tokens: int) -> dict[str, Any]:
    """A chat request; no two have the same prompt."""
    content = f"Tell me something about {TOPICS[number % len(TOPICS)]}, number {number}."
    message = {"role": "user", "content": content}
    return {"model": "default", "messages": [message], "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}


async def create_batch(client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]]) -> str:
    """Uploads the requests and starts them; returns the batch's id."""
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    upload = await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    upload.raise_for_status()
    asked = {"input_file_id": upload.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created = await client.post("/v1/batches", json=asked)
    created.raise_for_status()
    return str(created.json()["id"])


async def wait_for(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    """The batch when it has ended."""
    while True:
        batch: dict[str, Any] = (await client.get(f"/v1/batches/{batch_id}")).raise_for_status().json()
        if batch["status"] in ENDED:
            return batch
        await asyncio.sleep(0.05)


async def cancel(client: httpx.AsyncClient, batch_id: str) -> tuple[float, float]:
    """Cancels a running batch; returns the seconds until it answered, and until it was cancelled."""
    begun = time.perf_counter()
    response = await client.post(f"/v1/batches/{batch_id}/cancel")
    answered = time.perf_counter() - begun
    response.raise_for_status()
    assert response.json()["status"] in ("cancelling", "cancelled"), response.text
    assert (await wait_for(client, batch_id))["status"] == "cancelled"
    return answered, time.perf_counter() - begun


async def by_batch(client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]]) -> float:
    begun = time.perf_counter()
    batch = await wait_for(client, await create_batch(client, bodies))
    assert batch["request_counts"] == {"total": len(bodies), "completed": len(bodies), "failed": 0}, batch
    return len(bodies) / (time.perf_counter() - begun)


async def by_hand(client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]], concurrency: int) -> float:
    gate = asyncio.Semaphore(concurrency)

    async def one(body: dict[str, Any]) -> None:
        async with gate:
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()

    begun = time.perf_counter()
    await asyncio.gather(*map(one, bodies))
    return len(bodies) / (time.perf_counter() - begun)


async def throughput(client: httpx.AsyncClient, args: argparse.Namespace) -> dict[str, Any]:
    sides: dict[str, Callable[[Sequence[dict[str, Any]]], Awaitable[float]]] = {
        "batch": lambda bodies: by_batch(client, bodies),
        "hand": lambda bodies: by_hand(client, bodies, args.concurrency),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    used = 0
    for turn in range(args.turns):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            bodies = [body_of(used + number, args.max_tokens) for number in range(args.lines)]
            used += args.lines
            rates[name].append(await sides[name](bodies))
            print(f"{name}: {rates[name][-1]:.1f} lines/s", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"lines_per_second": rates, "medians": medians, "ratio": medians["batch"] / medians["hand"]}


async def interactive(target: Target, args: argparse.Namespace, seed: int) -> list[Answer]:
    """Run one conversation after another, for --seconds; each prompt is new."""
    answers: list[Answer] = []
    deadline = time.monotonic() + args.seconds
    async with target.client() as client:
        while time.monotonic() < deadline:
            prompt = f"{seed}.{len(answers)}: what do you think of {TOPICS[len(answers) % len(TOPICS)]}?"
            answers.append(await ask(target, client, prompt, args.max_tokens))
            assert answers[-1].error is None, answers[-1].error
            await asyncio.sleep(args.pause)
    return answers


def figures(answers: Sequence[Answer]) -> dict[str, float | None]:
    firsts = [answer.first for answer in answers if answer.first is not None]
    gaps = [gap for answer in answers for gap in answer.gaps]
    totals = [answer.total for answer in answers]
    named = {"ttft": firsts, "inter_token": gaps, "total": totals}
    values = {f"{name}_p{p}_ms": percentile(each, p) for name, each in named.items() for p in (50, 99)}
    return {name: None if value is None else round(value * 1000, 2) for name, value in values.items()}


async def latency(client: httpx.AsyncClient, args: argparse.Namespace) -> dict[str, Any]:
    target = Target(f"{str(client.base_url).rstrip('/')}/v1", "default", "chat")
    sides: dict[str, list[Answer]] = {"alone": [], "beside_batch": []}
    cancels, num_lines, used = [], 0, 10**6
    await interactive(target, argparse.Namespace(**{**vars(args), "seconds": 1.0}), -1)
    for turn in range(args.turns):
        sides["alone"] += await interactive(target, args, 2 * turn)
        bodies = [body_of(used + number, args.max_tokens) for number in range(args.lines)]
        used += args.lines
        batch_id = await create_batch(client, bodies)
        await asyncio.sleep(2.0)  # it fills the engine
        before = (await client.get(f"/v1/batches/{batch_id}")).json()["request_counts"]["completed"]
        sides["beside_batch"] += await interactive(target, args, 2 * turn + 1)
        counts = (await client.get(f"/v1/batches/{batch_id}")).json()["request_counts"]
        assert counts["completed"] < args.lines, "the batch ended too early: give it more --lines"
        num_lines += counts["completed"] - before
        cancels.append(await cancel(client, batch_id))
    told = {name: figures(answers) for name, answers in sides.items()}
    ratios = {name: told["beside_batch"][name] / value for name, value in told["alone"].items() if value}  # type: ignore[operator]
    return {
        "requests": {name: len(answers) for name, answers in sides.items()},
        **told,
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "batch_lines_per_second_beside": round(num_lines / (args.turns * args.seconds), 2),
        "cancel_seconds": [{"answered": round(a, 4), "cancelled": round(b, 3)} for a, b in cancels],
    }


async def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(args.limit), limits=limits) as client:
        what = {"throughput": throughput, "latency": latency}[args.what]
        return await asyncio.wait_for(what(client, args), args.limit)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("throughput", "latency"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64, help="of the requests by hand")
    parser.add_argument("--seconds", type=float, default=20.0, help="of interactive requests a turn")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two interactive requests")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that all of it may take")
    parser.add_argument("--out", type=Path)
    add_server_arguments(parser, ["--served-model-name", "default"])
    args = parser.parse_args(argv)
    exit_on_sigterm()
    with chosen_server(args) as server:
        result = asyncio.run(measure(server.url, args))
    report("serving/batches.py", argv, result, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
