"""Host time of a decode step, part by part: what the engine does besides waiting for the device.

    python benchmarks/engine/host_overhead.py --requests 1 64 256 --queued 0 10000 --steps 300
    python benchmarks/engine/host_overhead.py --requests 256 1000 --cpu-time --repeats 3
    python benchmarks/engine/host_overhead.py --arguments 10 40 160

Runs a random tiny model (no download). `wait` is the time spent until the previous step's tokens are there: on an
accelerator it is the device's time that the host did not hide. The host's own time is the sum of the others.
--cpu-time counts CPU time of the engine's thread, which other work on the machine changes less; a wait is nothing then.
--arguments shows instead what a program costs by the number of its arrays.
"""

import argparse
import collections
import dataclasses
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.support.server_process import provenance
from palladio.flags.default_model import default_model_path
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.state.new_tokens import SampledRows

PROMPT, CHUNK = 16, 256  # tokens of each request, and of a prefill step


def steps_to_admit(num_requests: int) -> int:
    """Return the number of prefill steps that admit all requests; admitted requests decode between them."""
    return num_requests * PROMPT // CHUNK + 1


class Stopwatch:
    """Adds up the time spent in wrapped methods, per step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: dict[str, list[float]] = collections.defaultdict(list)
        self._replaced: list[tuple[Any, str]] = []

    def wrap(self, owner: Any, method: str, label: str) -> None:
        function: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.times[label].append(self.clock() - start)

        self.replace(owner, method, timed)

    def replace(self, owner: Any, method: str, function: Callable[..., Any]) -> None:
        setattr(owner, method, function)
        self._replaced.append((owner, method))

    def restore(self) -> None:
        """Restore the methods of the classes."""
        for owner, method in self._replaced:
            delattr(owner, method)
        self._replaced.clear()


def once_each(run: Callable[..., Any]) -> Callable[..., Any]:
    """Runs each program once; later calls get the same results."""
    given: dict[Any, Any] = {}

    def run_once(key: Any, *arrays: Any) -> Any:
        if key not in given:
            given[key] = run(key, *arrays)
        return given[key]

    return run_once


def measure(
    core: EngineCore,
    num_requests: int,
    num_queued: int,
    num_steps: int,
    *,
    sampled: bool,
    uses_device: bool = True,
    num_timelines: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median µs of each part over the decode steps of `num_requests` streams, while others wait for their end.

    Args:
        num_timelines: requests that are recorded.
        clock: seconds of wall or CPU time.
    """
    core.flush_cache()  # a pool full of earlier requests' pages evicts at each step that gives some
    rng = np.random.default_rng(0)
    scheduler, runner = core._scheduler.schedulers[0], core._runner
    limits = scheduler.limits
    scheduler.limits = dataclasses.replace(limits, max_running=num_requests)
    max_tokens = num_steps + 2 + steps_to_admit(num_requests)  # so that none ends while steps are measured
    for i in range(num_requests + num_queued):
        params = SamplingParams(
            max_tokens=max_tokens, temperature=0.8 if sampled else 0.0, top_p=0.9 if sampled else 1.0, seed=i
        )
        options = RequestOptions(timeline=i < num_timelines)
        core.add(GenerationRequest(f"r{i}", rng.integers(3, 300, PROMPT).tolist(), params, (), time.time(), options))
    while len(scheduler.running) < num_requests or any(request.is_prefilling for request in scheduler.running):
        core.step()
    for _ in range(10):
        core.step()
    watch = Stopwatch(clock)
    if not uses_device:
        watch.replace(runner.executor, "run", once_each(runner.executor.run))
    wrapped = [
        (scheduler, "schedule", "schedule"),
        (runner, "_build", "build"),
        (runner, "forward", "forward"),
        (runner, "sample", "sample"),
        (scheduler, "process", "process"),
        (core, "step", "step"),
    ]
    for owner, method, label in wrapped:
        watch.wrap(owner, method, label)
    read = runner.read

    def wait_and_read(step: InFlightStep) -> list[SampledRows]:
        start = clock()
        step.last_array.block_until_ready()
        watch.times["wait"].append(clock() - start)
        return read(step)

    watch.replace(runner, "read", wait_and_read)
    gc.collect()
    gc.disable()
    for _ in range(num_steps - 30):
        core.step()
    gc.enable()
    watch.restore()
    core.abort([f"r{i}" for i in range(num_requests + num_queued)])
    while core.has_work:
        core.step()
    scheduler.limits = limits
    steps = len(watch.times["step"])
    result = {label: 1e6 * sum(values) / steps for label, values in watch.times.items()}
    median_step = 1e6 * statistics.median(watch.times["step"])
    host = result["step"] - result["wait"]
    return {
        "requests": num_requests,
        "queued": num_queued,
        "step": median_step,
        "wait": result["wait"],
        "host": host,
        "schedule": result["schedule"],
        "build": result["build"],
        "dispatch": result["forward"] + result["sample"] - result["build"],
        "process": result["process"],
        "other": host - result["schedule"] - result["forward"] - result["sample"] - result["process"],
    }


def microseconds_of_call(num_arrays: int, calls: int = 2000, turns: int = 7) -> float:
    """Measure the host's time to start a compiled program of `num_arrays` small arrays, one of them donated and one its
    own."""
    weights, state, row = [jnp.ones((8, 8))] * num_arrays, jnp.zeros(8), np.ones(8, np.float32)
    program = jax.jit(lambda weights, state, row: (state + row, row), donate_argnums=1, keep_unused=True)
    compiled, found = program.lower(weights, state, row).compile(), []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(calls):
            state, given = compiled(weights, state, row)
        found.append((time.perf_counter() - start) / calls)
        given.block_until_ready()
    return 1e6 * min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--queued", type=int, nargs="+", default=[0], help="requests that wait meanwhile")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sampled", action="store_true", help="temperature and top_p instead of greedy")
    parser.add_argument("--quantization", help="bits of the weights; those with scales are twice the arguments")
    parser.add_argument(
        "--without-device", action="store_true", help="run no programs: a CPU would compute on the host's own cores"
    )
    parser.add_argument("--timelines", type=int, default=0, help="requests that ask for their timeline")
    parser.add_argument("--cpu-time", action="store_true", help="of the engine's thread, in place of wall time")
    parser.add_argument("--repeats", type=int, default=1, help="of each measurement, in turns")
    parser.add_argument("--arguments", type=int, nargs="+", help="arrays of a program: only what a call takes")
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    if args.arguments:
        for count in args.arguments:
            print(f"{count:9} arrays {microseconds_of_call(count):9.1f} µs a call")
        return
    config = EngineConfig.from_flags(
        {
            "model_path": str(default_model_path()),
            "max_running_requests": max(args.requests),
            "max_total_tokens": max(args.requests) * (args.steps + steps_to_admit(max(args.requests)) + 64),
            "chunked_prefill_size": CHUNK,
            "compile": "full",
            "num_continuous_decode_steps": 1,  # a step's parts, not those of up to four passes
            "quantization": args.quantization,
        }
    )
    core = EngineCore.create(config, lambda progress: None)
    rows = [
        measure(
            *(core, count, queued, args.steps),
            sampled=args.sampled,
            uses_device=not args.without_device,
            num_timelines=args.timelines,
            clock=time.thread_time if args.cpu_time else time.perf_counter,
        )
        for _ in range(args.repeats)
        for count in args.requests
        for queued in args.queued
    ]
    columns = list(rows[0])
    print("µs per decode step (step: median; the rest: mean)")
    print(" ".join(f"{name:>9}" for name in columns))
    for row in rows:
        print(" ".join(f"{row[name]:9.0f}" for name in columns))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(provenance() | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
