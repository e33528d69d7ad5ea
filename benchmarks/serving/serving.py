"""Loads any OpenAI-compatible server and reports tokens/s, time to first token and inter-token latency.

    python benchmarks/serving/serving.py --base-url http://127.0.0.1:30000/v1
    python benchmarks/serving/serving.py --base-url … --workloads single many --json out.json

Fixed workloads, to compare one day with another; `palladio bench` has the same client and figures, and loads that grow.

Every workload is streamed through /v1/completions (or --endpoint chat) with `ignore_eos`, and each answer's
`usage.completion_tokens` is checked against what was asked for. Inter-token latency is the time between two events of
a stream that carry text, so servers that put several tokens into an event show larger values.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palladio.load.client import Target, ask, find_model
from palladio.load.runner import run_workload
from palladio.load.workloads import Workload

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
    async with target.client() as client:
        target = await find_model(target, client)
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
