"""How much of each step is padding: the scheduler and the default buckets on chat-like lengths, without a device.

    python benchmarks/engine/padding.py [--platforms cpu accelerator] [--requests 1000] [--loads 0.5] [--json out.json]
    python benchmarks/engine/padding.py --flags '{"chunked_prefill_size": 2048, "disable_mixed_chunk": true}'

Lengths are log-normal, cut to 4 … 1024 tokens each. Their parameters give the means that vLLM's `benchmark_serving.py`
finds in its sample of 1000 conversations of ShareGPT_Vicuna_unfiltered (217 prompt and 202 output tokens, prompts over
1024 left out); the spreads (sigma 1.3 and 1.0) are a guess at that data's long tails, not a fit.

Requests arrive all at once, or at random (Poisson) at a share of the rate at which the all-at-once run was served. The
device is a clock: a step takes a time for itself and a time for each token of its bucket, those of an 8B model on an
H200 (6 ms, 40 µs), or of a 0.5B model on two CPU cores (100 ms, 12 ms). A request's max_tokens is its output's length,
nothing ends early, and no two prompts begin alike.

A row is a kind of step: prefill, mixed (prefill with decode rows), decode. `lm head` are the rows that are sampled in
all of them.
"""

import argparse
import collections
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.support.server_process import provenance
from palladio.flags.default_model import default_model_path
from palladio.model.cache.kv_cache import PAGE_SIZES
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.core.start.build_scheduler import build_scheduler
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.page_groups import PageGroups
from palladio.runtime.scheduling.state.request import Request

SHORTEST, LONGEST = 4, 1024
PROMPT_LOGNORMAL = (4.75, 1.3)  # mu, sigma of the logarithm
OUTPUT_LOGNORMAL = (4.87, 1.0)
KINDS = ("prefill", "mixed", "decode", "all", "lm head")


@dataclasses.dataclass(frozen=True)
class Platform:
    """A device's defaults, and how long its steps take, in seconds."""

    defaults: PlatformDefaults
    step_seconds: float
    token_seconds: float


PLATFORMS = {
    "cpu": Platform(PlatformDefaults.of("cpu"), 0.1, 0.012),
    "accelerator": Platform(PlatformDefaults.of("gpu"), 0.006, 40e-6),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclasses.dataclass(slots=True)
class Use:
    """Tokens of the steps of one kind or bucket: those that requests needed, and those that were computed."""

    steps: int = 0
    real: int = 0
    padded: int = 0

    def add(self, real: int, padded: int) -> None:
        self.steps += 1
        self.real += real
        self.padded += padded

    def figures(self) -> dict[str, float]:
        ratio = self.padded / self.real if self.real else 1.0
        return {"steps": self.steps, "real": self.real, "padded": self.padded, "padded_to_real": ratio}


def lengths(rng: np.random.Generator, count: int, mu: float, sigma: float) -> np.ndarray:
    return np.clip(rng.lognormal(mu, sigma, count), SHORTEST, LONGEST).astype(int)


def arrivals(requests: int, seed: int, rate: float | None) -> list[Arrival]:
    """The same requests for every rate (requests a second); None: all at once."""
    rng = np.random.default_rng(seed)
    prompts = lengths(rng, requests, *PROMPT_LOGNORMAL)
    outputs = lengths(rng, requests, *OUTPUT_LOGNORMAL)
    times = np.zeros(requests) if rate is None else rng.exponential(1 / rate, requests).cumsum()
    return [Arrival(*row) for row in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]


def make_scheduler(platform: Platform, flags: dict[str, Any]) -> tuple[Scheduler, Buckets]:
    """Make the scheduler of an engine on that platform, with the pool that it would find useful."""
    path = default_model_path()
    config = EngineConfig.from_flags({"model_path": str(path)} | flags)
    limits = EngineLimits.of(config, ModelConfig.from_hf(*read_model_dir(path)), platform.defaults)
    buckets = limits.buckets(config, platform.defaults)
    num_tokens = config.cache.max_total_tokens or limits.useful_pool_tokens
    page_size = config.cache.page_size or PAGE_SIZES[0]
    num_pages = num_tokens // page_size + 1
    return build_scheduler(config, limits, buckets, num_pages, PageGroups(page_size), seed=0).schedulers[0], buckets


class Simulation:
    """The engine's loop with a clock for a device, one step ahead of what the host has read.

    Attributes:
        kinds, buckets: what the steps held, by kind, and by kind and size.
        seconds: on the device's clock.
    """

    def __init__(self, platform: Platform, flags: dict[str, Any], seed: int) -> None:
        self._platform = platform
        self._scheduler, self._buckets = make_scheduler(platform, flags)
        self._rng = np.random.default_rng(seed)
        self._in_flight: collections.deque[ScheduledBatch] = collections.deque()
        self.kinds: dict[str, Use] = {kind: Use() for kind in KINDS}
        self.buckets: dict[tuple[str, int], Use] = collections.defaultdict(Use)
        self.seconds = 0.0

    def run(self, coming: Sequence[Arrival]) -> None:
        queue = collections.deque(coming)
        while queue or self._scheduler.has_requests or self._in_flight:
            while queue and queue[0].seconds <= self.seconds:
                self._add(queue.popleft(), len(queue))
            batch = self._scheduler.schedule()
            if batch is not None:
                self._count(batch)
                self._in_flight.append(batch)
            elif not self._in_flight and queue:
                self.seconds = queue[0].seconds
            while len(self._in_flight) > (0 if batch is None else 1):
                self._read(self._in_flight.popleft())

    def _add(self, arrival: Arrival, number: int) -> None:
        params = SamplingParams(max_tokens=arrival.output_tokens, temperature=0.0, seed=0, ignore_eos=True)
        prompt_ids = self._rng.integers(0, 2**31, arrival.prompt_tokens).tolist()
        message = GenerationRequest(str(number), prompt_ids, params, (), arrival.seconds)
        self._scheduler.add(Request.of(message))

    def _count(self, batch: ScheduledBatch) -> None:
        num_rows, sampled = len(batch.rows), batch.num_sampled_rows
        if batch.kind == "decode" and self._buckets.decode:
            steps = max(row.num_tokens for row in batch.rows)
            kind, size = "decode", steps * self._buckets.pick_decode(num_rows)
        else:
            size = self._buckets.pick_prefill(batch.num_tokens, num_rows).num_tokens
            kind = "prefill" if batch.num_decodes == 0 else "mixed" if batch.kind == "prefill" else "decode"
        for use in (self.kinds[kind], self.kinds["all"], self.buckets[kind, size]):
            use.add(batch.num_tokens, size)
        if sampled:
            self.kinds["lm head"].add(sampled, self._buckets.pick_sample(sampled))
        self.seconds += self._platform.step_seconds + size * self._platform.token_seconds

    def _read(self, batch: ScheduledBatch) -> None:
        counts = np.array([row.num_sampled for row in batch.rows if row.samples])
        token_ids = np.zeros((len(counts), max(1, *counts)), np.int32)
        self._scheduler.process(batch, [SampledRows(token_ids, counts, {})])


def simulate(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All ways of arriving on one platform."""
    platform = PLATFORMS[name]
    results: dict[str, Any] = {}
    rate: float | None = None
    for label, load in (("all at once", None), *((f"load {load:g}", load) for load in args.loads)):
        coming = arrivals(args.requests, args.seed, None if load is None or rate is None else load * rate)
        simulation = Simulation(platform, args.flags, args.seed)
        simulation.run(coming)
        if load is None:
            rate = args.requests / simulation.seconds
        results[label] = {
            "requests_per_second": args.requests / simulation.seconds,
            "kinds": {kind: use.figures() for kind, use in simulation.kinds.items() if use.steps},
            "buckets": [
                {"kind": kind, "size": size} | use.figures() for (kind, size), use in sorted(simulation.buckets.items())
            ],
        }
    return results


def show(name: str, results: dict[str, Any], with_buckets: bool) -> None:
    print(f"\n{name:<12} {'arrivals':<12} {'steps of':<10} {'steps':>7} {'real':>9} {'padded':>9} {'padded/real':>12}")
    for label, result in results.items():
        for kind, row in result["kinds"].items():
            print(
                f"{'':<12} {label:<12} {kind:<10} {row['steps']:>7} {row['real']:>9} {row['padded']:>9} "
                f"{row['padded_to_real']:>12.3f}"
            )
        if not with_buckets:
            continue
        total = result["kinds"]["all"]["padded"]
        for row in result["buckets"]:
            print(
                f"{'':<25} {row['kind'] + ' ' + str(row['size']):<14} {row['steps']:>7} steps, "
                f"{row['real'] / row['padded']:>5.0%} full, {row['padded'] / total:>6.1%} of what is computed"
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--platforms", nargs="+", choices=tuple(PLATFORMS), default=tuple(PLATFORMS))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--loads", nargs="*", type=float, default=(0.5, 0.9), help="shares of the rate at full load")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flags", type=json.loads, default={}, help="JSON object of engine flags (underscores)")
    parser.add_argument("--buckets", action="store_true", help="show each bucket too")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    sample = arrivals(args.requests, args.seed, None)
    means = {
        "prompt_tokens": sum(arrival.prompt_tokens for arrival in sample) / len(sample),
        "output_tokens": sum(arrival.output_tokens for arrival in sample) / len(sample),
    }
    print(f"mean prompt {means['prompt_tokens']:.0f} tokens, mean output {means['output_tokens']:.0f} tokens")
    report = provenance() | {"requests": args.requests, "means": means, "flags": args.flags, "platforms": {}}
    for name in args.platforms:
        report["platforms"][name] = simulate(name, args)
        show(name, report["platforms"][name], args.buckets)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
