"""Loads any OpenAI-compatible server and reports tokens/s, time to first token and inter-token latency.

    python benchmarks/serving.py --base-url http://127.0.0.1:30000/v1
    python benchmarks/serving.py --base-url … --workloads single many --json out.json

Every workload is streamed through /v1/completions (or --endpoint chat) with `ignore_eos`, and each answer's
`usage.completion_tokens` is checked against what was asked for. Inter-token latency is the time between two events of
a stream that carry text, so servers that put several tokens into an event show larger values.
"""

import argparse
import asyncio
import dataclasses
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests of one kind.

    Attributes:
        prompt_tokens: length of each prompt, about; shared_tokens of them are the same in all.
        concurrency: requests in flight at once.
    """

    name: str
    requests: int
    max_tokens: int
    prompt_tokens: int
    concurrency: int
    shared_tokens: int = 0


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("single", requests=1, max_tokens=128, prompt_tokens=32, concurrency=1),
        Workload("sixteen", requests=16, max_tokens=128, prompt_tokens=32, concurrency=16),
        Workload("small", requests=20, max_tokens=64, prompt_tokens=32, concurrency=20),
        Workload("many", requests=200, max_tokens=64, prompt_tokens=32, concurrency=64),
        Workload("prefix", requests=64, max_tokens=32, prompt_tokens=544, concurrency=64, shared_tokens=512),
        Workload("long", requests=8, max_tokens=32, prompt_tokens=2000, concurrency=8),
    )
}


@dataclasses.dataclass(slots=True)
class Answer:
    """One request's outcome; times in seconds since its start."""

    error: str | None = None
    first: float | None = None
    total: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Target:
    """A server under load. `endpoint` is "completions" or "chat"; `extra` is merged into every request body, and its
    nulls remove fields that the server does not know."""

    base_url: str
    model: str
    endpoint: str = "completions"
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    api_key: str = "None"

    def client(self, timeout: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self.api_key}"},
            timeout=httpx.Timeout(timeout),
            limits=httpx.Limits(max_connections=None),
        )

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}/{path}"

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        body = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        content = {"messages": [{"role": "user", "content": prompt}]} if self.endpoint == "chat" else {"prompt": prompt}
        return {name: value for name, value in (body | content | self.extra).items() if value is not None}


async def ask(target: Target, client: httpx.AsyncClient, prompt: str, max_tokens: int) -> Answer:
    """Sends one request and reads its stream."""
    answer = Answer()
    path = "chat/completions" if target.endpoint == "chat" else "completions"
    start = last = time.perf_counter()
    try:
        async with client.stream("POST", target.url(path), json=target.body(prompt, max_tokens)) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                answer.error = f"HTTP {response.status_code}: {text[:200]}"
                return answer
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line.endswith("[DONE]"):
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    answer.error = str(event["error"])[:200]
                    return answer
                usage = event.get("usage")
                if usage:
                    answer.prompt_tokens = usage["prompt_tokens"]
                    answer.completion_tokens = usage["completion_tokens"]
                    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                if any(text_of(choice) for choice in event.get("choices", ())):
                    now = time.perf_counter()
                    if answer.first is None:
                        answer.first = now - start
                    else:
                        answer.gaps.append(now - last)
                    last = now
    except (httpx.HTTPError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.total = time.perf_counter() - start
    if answer.error is None and answer.completion_tokens != max_tokens:
        answer.error = f"asked for {max_tokens} tokens, got {answer.completion_tokens}"
    return answer


def text_of(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


async def count_tokens(target: Target, client: httpx.AsyncClient, text: str) -> int:
    """By the server's own /tokenize; without one, a word counts as a token."""
    url = target.base_url.rstrip("/").removesuffix("/v1") + "/tokenize"
    try:
        response = await client.post(url, json={"model": target.model, "prompt": text})
        return int(response.json()["count"]) if response.status_code == 200 else len(text.split())
    except (httpx.HTTPError, KeyError, ValueError):
        return len(text.split())


async def make_text(target: Target, client: httpx.AsyncClient, tokens: int, rng: random.Random) -> str:
    """Words of about `tokens` tokens: within one word of it where the server counts."""
    words = [rng.choice(WORDS) for _ in range(tokens)]
    count = await count_tokens(target, client, " ".join(words))
    words = words[: max(1, round(tokens * tokens / max(count, 1)))]
    for _ in range(8):
        excess = await count_tokens(target, client, " ".join(words)) - tokens
        if excess > 0 and len(words) > 1:
            words = words[: -max(1, excess // 2)]
        elif excess < -2:
            words += [rng.choice(WORDS) for _ in range(max(1, -excess // 2))]
        else:
            break
    return " ".join(words)


async def make_prompts(target: Target, client: httpx.AsyncClient, workload: Workload, seed: int) -> list[str]:
    rng = random.Random(f"{workload.name} {seed}")
    shared = await make_text(target, client, workload.shared_tokens, rng) if workload.shared_tokens else ""
    own = workload.prompt_tokens - workload.shared_tokens
    template = (await make_text(target, client, own, rng)).split()
    return [f"{shared} {i} " + " ".join(rng.sample(template, len(template))) for i in range(workload.requests)]


async def run_workload(target: Target, workload: Workload, limit: float, seed: int) -> dict[str, Any]:
    """Runs one workload for at most `limit` seconds; what has not ended by then counts as failed."""
    async with target.client(limit) as client:
        prompts = await make_prompts(target, client, workload, seed)
        return await run_prompts(target, client, workload, prompts, limit)


async def run_prompts(
    target: Target, client: httpx.AsyncClient, workload: Workload, prompts: Sequence[str], limit: float
) -> dict[str, Any]:
    """The same with given prompts."""
    gate = asyncio.Semaphore(workload.concurrency)

    async def one(prompt: str) -> Answer:
        async with gate:
            return await ask(target, client, prompt, workload.max_tokens)

    start = time.perf_counter()
    tasks = [asyncio.create_task(one(prompt)) for prompt in prompts]
    _, late = await asyncio.wait(tasks, timeout=limit)
    seconds = time.perf_counter() - start
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    answers = [Answer(error=f"not done after {limit:g} s") if task in late else task.result() for task in tasks]
    return summarize(workload, answers, seconds)


def summarize(workload: Workload, answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    good = [answer for answer in answers if answer.error is None]
    firsts = [answer.first for answer in good if answer.first is not None]
    gaps = [gap for answer in good for gap in answer.gaps]
    return {
        "workload": dataclasses.asdict(workload),
        "seconds": seconds,
        "failures": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error})[:5],
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "cached_tokens": sum(answer.cached_tokens for answer in good),
        "completion_tokens": sum(answer.completion_tokens for answer in good),
        "tokens_per_second": sum(answer.completion_tokens for answer in good) / seconds,
        "ttft_p50": percentile(firsts, 50),
        "ttft_p99": percentile(firsts, 99),
        "itl_p50": percentile(gaps, 50),
        "itl_p99": percentile(gaps, 99),
    }


def percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def print_row(result: dict[str, Any]) -> None:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value * 1000:.1f}"

    print(
        f"{result['workload']['name']:>8} {result['workload']['requests']:>5} {result['seconds']:>8.2f} "
        f"{result['tokens_per_second']:>9.1f} {ms(result['ttft_p50']):>9} {ms(result['ttft_p99']):>9} "
        f"{ms(result['itl_p50']):>8} {ms(result['itl_p99']):>8} {result['failures']:>5}",
        flush=True,
    )
    for error in result["errors"]:
        print(f"         {error}", file=sys.stderr)


async def run(target: Target, names: Sequence[str], limit: float, seed: int) -> dict[str, Any]:
    """All named workloads, one after the other, after one short request to wake the server."""
    async with target.client(limit) as client:
        if not target.model:
            models = (await client.get(target.url("models"))).raise_for_status().json()
            target = dataclasses.replace(target, model=models["data"][0]["id"])
        first = await ask(target, client, "Hello", 4)
    if first.error is not None:
        print(f"note: the first request failed: {first.error}", file=sys.stderr)
    print(f"{target.base_url} {target.model}")
    print("workload  reqs  seconds  tokens/s  ttft p50  ttft p99  itl p50  itl p99  fail   (times in ms)")
    results = []
    for name in names:
        results.append(await run_workload(target, WORKLOADS[name], limit, seed))
        print_row(results[-1])
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": platform.platform(),
        "python": platform.python_version(),
        "target": {"base_url": target.base_url, "model": target.model, "endpoint": target.endpoint},
        "results": results,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:30000/v1")
    parser.add_argument("--model", default="", help="default: the first one of /v1/models")
    parser.add_argument("--api-key", default="None")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one workload may take")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other prompts (none of them cached)")
    parser.add_argument(
        "--extra", type=json.loads, default={}, help="JSON object merged into each request; null removes a field"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    target = Target(args.base_url, args.model, args.endpoint, args.extra, args.api_key)
    report = asyncio.run(run(target, args.workloads, args.limit, args.seed))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(result["failures"] for result in report["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
