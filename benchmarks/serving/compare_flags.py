"""What a scheduling flag gains or costs: the same workload on two engines that differ in that flag, turn by turn.

    python benchmarks/serving/compare_flags.py --compare radix mixed overlap steps deterministic --model tiny --turns 3

Both engines live in this process, without HTTP, and take turns, so that a noisy machine disturbs both alike. Reports
medians over the turns and their ratio.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import numpy as np

from benchmarks.support.checkpoints import make_checkpoint
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.stats_report import upper_bound
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams

MAX_ID = 2000  # ids below this are ordinary tokens of every checkpoint


@dataclasses.dataclass(frozen=True)
class Arrival:
    """An arriving request.

    Attributes:
        at: seconds from the start.
        prompt: token ids.
        max_tokens: generated in full (no stop ids).
    """

    at: float
    prompt: list[int]
    max_tokens: int


def shared_prefix(rng: np.random.Generator, scale: float) -> list[Arrival]:
    """48 requests at once: a common prefix of 512 tokens, 32 of their own, 16 generated."""
    prefix = rng.integers(3, MAX_ID, 512).tolist()
    return [Arrival(0.0, prefix + rng.integers(3, MAX_ID, 32).tolist(), 16) for _ in range(round(48 * scale))]


def decode(rng: np.random.Generator, scale: float) -> list[Arrival]:
    """16 requests at once, short prompts, 128 generated."""
    return [Arrival(0.0, rng.integers(3, MAX_ID, 16).tolist(), round(128 * scale)) for _ in range(16)]


def arrivals(rng: np.random.Generator, scale: float) -> list[Arrival]:
    """8 streams of 160 tokens, and prompts of 200 to 800 tokens with 24 generated that come in one by one."""
    streams = [Arrival(0.0, rng.integers(3, MAX_ID, 16).tolist(), round(160 * scale)) for _ in range(8)]
    times = np.cumsum(rng.exponential(0.06, round(16 * scale)))
    sizes = rng.integers(200, 800, len(times))
    late = zip(times.tolist(), sizes.tolist(), strict=True)
    return streams + [Arrival(at, rng.integers(3, MAX_ID, size).tolist(), 24) for at, size in late]


def long_decode(rng: np.random.Generator, scale: float) -> list[Arrival]:
    """8 requests at once, prompts of 2,000 tokens, 48 generated."""
    return [Arrival(0.0, rng.integers(3, MAX_ID, 2000).tolist(), round(48 * scale)) for _ in range(8)]


def streams(count: int, num_tokens: int) -> Callable[[np.random.Generator, float], list[Arrival]]:
    """Requests at once, prompts of 32 tokens."""

    def make(rng: np.random.Generator, scale: float) -> list[Arrival]:
        return [Arrival(0.0, rng.integers(3, MAX_ID, 32).tolist(), round(num_tokens * scale)) for _ in range(count)]

    return make


def long_prompts(rng: np.random.Generator, scale: float) -> list[Arrival]:
    """4 prompts of 2,000 tokens, 8 generated."""
    return [Arrival(0.0, rng.integers(3, MAX_ID, round(2000 * scale)).tolist(), 8) for _ in range(4)]


# Of a CPU: weights as the checkpoint has them (bfloat16), and float32.
DTYPES: tuple[dict[str, Any], dict[str, Any]] = ({"dtype": "auto"}, {"dtype": "float32"})

# Sizes of decode steps between powers of two, and powers of two.
SIZES: tuple[dict[str, Any], dict[str, Any]] = (
    {"cuda_graph_bs": (1, 2, 4, 8, 16, 24, 32, 48, 64)},
    {"cuda_graph_bs": (1, 2, 4, 8, 16, 32, 64)},
)

# Weights of 8 bits, with activations of 16 and of 8, and float32.
BYTES: tuple[dict[str, Any], dict[str, Any]] = ({"quantization": "int8"}, {"dtype": "float32"})
ALL_BYTES: tuple[dict[str, Any], dict[str, Any]] = ({"quantization": "w8a8_int8"}, {"dtype": "float32"})

# Products of one or a few rows: our own C++, and XLA's.
NATIVE: tuple[dict[str, Any], dict[str, Any]] = (
    {"dtype": "bfloat16", "cpu_kernels": "native"},
    {"dtype": "bfloat16", "cpu_kernels": "xla"},
)
NATIVE_BYTES: tuple[dict[str, Any], dict[str, Any]] = (
    {"quantization": "int8", "cpu_kernels": "native"},
    {"quantization": "int8", "cpu_kernels": "xla"},
)

COMPARISONS: dict[str, tuple[Callable[[np.random.Generator, float], list[Arrival]], dict[str, Any], dict[str, Any]]] = {
    "radix": (shared_prefix, {}, {"disable_radix_cache": True}),
    "mixed": (arrivals, {"enable_mixed_chunk": True}, {"disable_mixed_chunk": True}),
    "overlap": (decode, {}, {"disable_overlap_schedule": True}),
    "steps": (decode, {"num_continuous_decode_steps": 4}, {"num_continuous_decode_steps": 1}),
    "steps-1": (streams(1, 128), {"num_continuous_decode_steps": 4}, {"num_continuous_decode_steps": 1}),
    "steps-20": (streams(20, 64), {"num_continuous_decode_steps": 4}, {"num_continuous_decode_steps": 1}),
    "deterministic": (decode, {"deterministic": True}, {}),
    "dtype-1": (streams(1, 64), *DTYPES),
    "dtype-20": (streams(20, 32), *DTYPES),
    "dtype-64": (streams(64, 24), *DTYPES),
    "dtype-long": (long_prompts, *DTYPES),
    "native-1": (streams(1, 64), *NATIVE),
    "native-4": (streams(4, 64), *NATIVE),
    "native-64": (streams(64, 24), *NATIVE),
    "native-decode-long": (long_decode, *NATIVE),
    "native-int8-1": (streams(1, 64), *NATIVE_BYTES),
    "sizes-20": (streams(20, 32), *SIZES),
    "sizes-40": (streams(40, 32), *SIZES),
    "int8-1": (streams(1, 64), *BYTES),
    "int8-20": (streams(20, 32), *BYTES),
    "int8-long": (long_prompts, *BYTES),
    "w8a8-1": (streams(1, 64), *ALL_BYTES),
    "w8a8-20": (streams(20, 32), *ALL_BYTES),
    "w8a8-long": (long_prompts, *ALL_BYTES),
    "deterministic-arrivals": (arrivals, {"deterministic": True}, {}),
}


def run(core: EngineCore, workload: list[Arrival]) -> dict[str, float]:
    """Figures of one workload: output tokens per second, time to the first token, gap between tokens, device idle."""
    before = core.stats().device_idle
    queue = sorted(enumerate(workload), key=lambda item: item[1].at)
    arrived: dict[str, float] = {}
    token_times: dict[str, list[float]] = defaultdict(list)
    start = time.perf_counter()
    while queue or core.has_work:
        now = time.perf_counter() - start
        while queue and queue[0][1].at <= now:
            number, arrival = queue.pop(0)
            params = SamplingParams(max_tokens=arrival.max_tokens, temperature=0.0, seed=0)
            core.add(GenerationRequest(f"r{number}", arrival.prompt, params, (), time.time()))
            arrived[f"r{number}"] = arrival.at
        outputs = by_request(core.step()) if core.has_work else []
        now = time.perf_counter() - start
        for output in outputs:
            token_times[output.request_id] += [now] * len(output.token_ids)
    wall = time.perf_counter() - start
    gaps = [gap for times in token_times.values() for gap in np.diff(times).tolist()]
    stats = core.stats()
    after = stats.device_idle
    idle = dataclasses.replace(
        after, counts=[b - a for a, b in zip(before.counts or after.counts, after.counts, strict=True)]
    )
    core.flush_cache()
    return {
        "tokens/s": sum(map(len, token_times.values())) / wall,
        "ttft p50 ms": 1e3 * statistics.median(times[0] - arrived[name] for name, times in token_times.items()),
        "gap p50 ms": 1e3 * float(np.percentile(gaps, 50)),
        "gap p99 ms": 1e3 * float(np.percentile(gaps, 99)),
        "idle p50 ms": 1e3 * (upper_bound(idle, 0.5) or 0.0),
        "idle p99 ms": 1e3 * (upper_bound(idle, 0.99) or 0.0),
    }


def compare(name: str, path: Path, turns: int, scale: float, compile_when: str) -> dict[str, Any]:
    """Medians of both sides, and first / second."""
    make, *sides = COMPARISONS[name]
    limits = {"max_total_tokens": 32768, "max_running_requests": 64, "random_seed": 0}
    common = {"model_path": str(path), "compile": compile_when, **limits}
    cores = [EngineCore.create(EngineConfig.from_flags(common | flags), lambda progress: None) for flags in sides]
    rows: list[list[dict[str, float]]] = [[], []]
    for turn in range(turns + 1):  # the first warms up
        for side, core in enumerate(cores):
            figures = run(core, make(np.random.default_rng(turn), scale))
            if turn:
                rows[side].append(figures)
    medians = [{key: statistics.median(row[key] for row in side) for key in side[0]} for side in rows]
    ratios = {key: medians[0][key] / medians[1][key] if medians[1][key] else None for key in medians[0]}
    return {"comparison": name, "flags": sides, "medians": medians, "ratio": ratios, "turns": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compare", choices=COMPARISONS, nargs="+", default=list(COMPARISONS))
    parser.add_argument("--model", choices=["tiny", "0.5b"], default="tiny")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the workloads")
    parser.add_argument("--compile", choices=["full", "lazy"], default="full", help="lazy: what the first turn needs")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    path = make_checkpoint(args.model, Path.home() / ".cache" / "palladio")
    results = []
    for name in args.compare:
        result = compare(name, path, args.turns, args.scale, args.compile)
        results.append(result)
        print(f"{name}: {result['flags'][0] or 'default'} against {result['flags'][1] or 'default'}")
        for key, ratio in result["ratio"].items():
            first, second = (side[key] for side in result["medians"])
            print(f"  {key:<12} {first:10.2f} {second:10.2f}  {'' if ratio is None else f'{ratio:6.2f}x'}", flush=True)
    if args.json:
        report = {
            "command": " ".join(["python", *sys.argv]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": platform.platform(),
            "jax": jax.__version__,
            "model": args.model,
            "results": results,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
