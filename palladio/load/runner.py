"""Sends requests at a pace, and waits for all of their answers."""

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from palladio.load.client import Answer, Target, ask
from palladio.load.figures import summarize
from palladio.load.http_client import HttpClient
from palladio.load.workloads import Ask, Workload, make_prompts


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """How fast requests come; exactly one is given.

    Attributes:
        concurrency: how many requests run at any time.
        rate: requests a second, at random times (a Poisson process), however many run.
    """

    concurrency: int | None = None
    rate: float | None = None

    @property
    def value(self) -> float:
        return self.rate if self.rate is not None else float(self.concurrency or 0)

    @property
    def name(self) -> str:
        return "rate" if self.rate is not None else "concurrency"


async def run_asks(
    target: Target,
    client: HttpClient,
    asks: Sequence[Ask],
    pace: Pace,
    limit: float,
    *,
    seed: int = 0,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> dict[str, Any]:
    """Figures of all requests together. What has not ended after `limit` seconds counts as failed.

    Args:
        seed: of the moments at which requests come.
    """
    gate = asyncio.Semaphore(len(asks) if pace.concurrency is None else pace.concurrency)
    rng = random.Random(f"arrivals {seed}")
    arrivals = [0.0]
    for _ in asks[1:]:
        arrivals.append(arrivals[-1] + (rng.expovariate(pace.rate) if pace.rate is not None else 0.0))
    start = time.perf_counter()

    async def one(one_ask: Ask, arrival: float) -> Answer:
        if arrival:
            await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
        async with gate:
            answer = await ask(target, client, one_ask.prompt, one_ask.max_tokens)
        on_answer(answer)
        return answer

    tasks = [asyncio.create_task(one(each, arrival)) for each, arrival in zip(asks, arrivals, strict=True)]
    try:
        _, late = await asyncio.wait(tasks, timeout=limit)
        seconds = time.perf_counter() - start
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    answers = [Answer(error=f"not done after {limit:g} s") if task in late else task.result() for task in tasks]
    return summarize(answers, seconds)


async def run_workload(target: Target, workload: Workload, limit: float, seed: int) -> dict[str, Any]:
    """One workload for at most `limit` seconds."""
    async with target.client() as client:
        prompts = await make_prompts(target, client, workload, seed)
        return await run_prompts(target, client, workload, prompts, limit)


async def run_prompts(
    target: Target, client: HttpClient, workload: Workload, prompts: Sequence[str], limit: float
) -> dict[str, Any]:
    """The same with given prompts."""
    asks = [Ask(prompt, workload.max_tokens) for prompt in prompts]
    figures = await run_asks(target, client, asks, Pace(concurrency=workload.concurrency), limit)
    return {"workload": dataclasses.asdict(workload)} | figures
