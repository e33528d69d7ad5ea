"""The engine on a GPU, offline, with random weights of true shapes: the workloads that h200.sh has goals for, or its
rate over batch sizes and what the device does meanwhile.

    python benchmarks/gpu/h200_engine.py --model qwen2.5-0.5b --out FILE
    python benchmarks/gpu/h200_engine.py --model qwen2.5-0.5b --stage sweep
    JAX_PLATFORMS=cpu python benchmarks/gpu/h200_engine.py --model qwen2.5-0.5b --tiny

With the same --compilation-cache-dir the second of these is a warm start of the first one's engine. Figures are written
after each workload, so that an engine which is ended early leaves what it had.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax
import numpy as np

from benchmarks.gpu.device_trace import read_kernels, summarize
from benchmarks.support.checkpoints import HALF_BILLION, LLAMA_8B
from benchmarks.support.report import write
from palladio import Engine
from palladio.model.config.config import ModelConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_stats import HistogramData
from palladio.runtime.interface.messages.stats_report import upper_bound
from palladio.runtime.planning.deployment import Deployment, Roofline
from palladio.runtime.planning.hardware import SLICES

CONFIGS = {"qwen2.5-0.5b": HALF_BILLION, "llama-3.1-8b": LLAMA_8B}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "vocab_size": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BANDWIDTH, FLOPS = 4.3e12, 790e12  # bytes/s of a large copy and bfloat16 operations/s of a large product, as measured
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PROMPT, FEW, MANY = 32, 8, 136  # tokens of a request in the sweep; a rate is what (MANY - FEW) tokens add
TURNS = 3
TRACED = {1: 64, 64: 32}  # steps, by requests

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload of an engine.

    Attributes:
        row: row of the table.
        count: requests at once.
        prompt_tokens, max_tokens: tokens of each request.
        running: requests that run at once.
        kv_tokens: tokens of the cache; None: as many as fit.
        sizes: sizes to compile programs for, besides `running`; None: all powers of two.
    """

    row: str
    count: int
    prompt_tokens: int
    max_tokens: int
    running: int = 512
    kv_tokens: int | None = None
    sizes: tuple[int, ...] | None = None

    def warm_up(self) -> "Workload":
        """Runs its programs once: where requests come and go, steps of all sizes."""
        if self.count > self.running:
            return dataclasses.replace(self, count=min(self.count, 3 * self.running))
        return dataclasses.replace(self, max_tokens=min(self.max_tokens, 4))

    @property
    def flags(self) -> Figures:
        """Flags of its engine."""
        sizes = {"max_running_requests": self.running, "max_total_tokens": self.kv_tokens, "cuda_graph_bs": self.sizes}
        return {name: value for name, value in sizes.items() if value is not None}

    def tiny(self) -> "Workload":
        """Small enough for a CPU."""
        kv_tokens = None if self.kv_tokens is None else 512
        return Workload(
            self.row, min(self.count, 6), min(self.prompt_tokens, 40), min(self.max_tokens, 8), 4, kv_tokens
        )


WORKLOADS = {  # the first one's engine is that of the sweep
    "qwen2.5-0.5b": (
        Workload("qwen decode 1", 1, 32, 512),
        Workload("qwen chat 5000", 5000, 40, 128, running=200, kv_tokens=20_480, sizes=(1, 16, 64, 128)),
    ),
    "llama-3.1-8b": (
        Workload("llama decode 1", 1, 32, 256),
        Workload("llama prefill 8x8192", 8, 8192, 1),
        Workload("llama running 500", 500, 32, 500),
    ),
}


class Bench:
    """One model's engines, one after the other, and their figures.

    Args:
        folder: of its configuration and of traces. cache: of compiled programs.
        out: file that figures are written to.
    """

    def __init__(self, model: str, tiny: bool, folder: Path, cache: Path, out: Path | None) -> None:
        self._tiny, self._folder, self._cache, self._out = tiny, folder, cache, out
        self._config = CONFIGS[model] | (SMALL if tiny else {})
        self._workloads = [workload.tiny() if tiny else workload for workload in WORKLOADS[model]]
        self._seed = 0
        self._flags: Figures = {}
        self._engine: Engine | None = None
        self._figures: Figures = {"rows": {}, "engines": [], "batch sizes": [], "traces": {}}
        (folder / "config.json").write_text(json.dumps(self._config))

    def measure_workloads(self) -> None:
        """Measure the workloads with goals in h200.sh."""
        for workload in self._workloads:
            if self._engine is None or workload.flags != self._flags:
                self._start(workload.flags)
            self._run(workload.warm_up())
            self._figures["rows"][workload.row] = self._with_idle(functools.partial(self._run, workload))
            self._tell(workload.row, self._figures["rows"][workload.row])
        self._stop()

    def measure_batch_sizes(self) -> None:
        """With the engine that the first workload has, decode rates, then traces."""
        flags = self._workloads[0].flags
        self._start(flags)
        self._sweep(self._workloads[0].running)
        for count, steps in TRACED.items():
            self._trace(min(count, self._workloads[0].running), 8 if self._tiny else steps)
        self._stop()

    def _start(self, flags: Figures) -> None:
        """An engine, in place of the one before."""
        self._stop()
        begin = time.perf_counter()
        self._flags = flags
        self._engine = Engine(
            model_path=str(self._folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            context_length=128 if self._tiny else 9216,
            chunked_prefill_size=64 if self._tiny else 8192,
            compilation_cache_dir=str(self._cache),
            random_seed=0,
            **flags,
        )
        started = {"seconds to ready": time.perf_counter() - begin}
        info = self._engine.get_server_info()
        told = ("device", "attention_kernels", "num_programs", "compile_seconds", "cache_hits", "max_total_tokens")
        self._figures["engines"].append(started | {name: info[name] for name in told} | flags)
        self._tell("engine", self._figures["engines"][-1])

    def _stop(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _sweep(self, max_running: int) -> None:
        """Measure the decode rate by number of requests, with the limits of the card's bandwidth and matrix units."""
        roofline = self._roofline()
        few, many = (4, 24) if self._tiny else (FEW, MANY)
        for count in (size for size in BATCH_SIZES if size <= max_running):
            self._timed(count, many)  # what programs cost when they first run is not their rate
            turns = TURNS if count <= 64 else 1  # at more, a run takes long enough
            shorter, longer = ([self._timed(count, tokens) for _ in range(turns)] for tokens in (few, many))
            rate = count * (many - few) / (statistics.median(longer) - statistics.median(shorter))
            limit = roofline.decode_rate(count, PROMPT + (few + many) // 2)
            row = {"requests": count, "tokens/s": rate, "step ms": 1e3 * count / rate}
            row |= {"limit tokens/s": limit, "share of limit": rate / limit}
            row["spread"] = (max(longer) - min(longer)) / statistics.median(longer)
            self._figures["batch sizes"].append(row)
            self._tell("batch size", self._figures["batch sizes"][-1])

    def _trace(self, count: int, steps: int) -> None:
        """Some decode steps in jax's profiler; what the engine's cost in it is not meant to be compared."""
        self._timed(count, 2)
        folder = self._folder / f"trace-{count}"
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = options.host_tracer_level = 0 if jax.devices()[0].platform != "cpu" else 2
        with jax.profiler.trace(str(folder), profiler_options=options):
            self._timed(count, steps)
        try:
            found = summarize(read_kernels(folder), steps)
        except ValueError as error:  # of a profiler that saw nothing
            found = {"error": str(error)}
        self._figures["traces"][f"{count} requests"] = found
        self._tell(f"trace of {count}", {name: value for name, value in found.items() if name != "kernels"})

    def _roofline(self) -> Roofline:
        """Return the roofline of one card as measured, not from its data sheet."""
        place = SLICES["h200-1"]
        place = dataclasses.replace(place, chip=dataclasses.replace(place.chip, bandwidth=BANDWIDTH, flops=FLOPS))
        flags = EngineConfig.from_flags({"model_path": str(self._folder), "max_running_requests": max(BATCH_SIZES)})
        return Roofline(Deployment.of(flags, ModelConfig.from_hf(self._config), place))

    def _run(self, workload: Workload) -> Figures:
        """Return tokens per second; a single request counts only tokens after its first, so that its prompt does not
        count."""
        assert self._engine is not None
        params = {"temperature": 0.0, "max_new_tokens": workload.max_tokens, "ignore_eos": True}
        prompts = self._prompts(workload.count, workload.prompt_tokens)
        begin = time.perf_counter()
        if workload.count == 1:
            stream = self._engine.generate(input_ids=prompts[0], sampling_params=params, stream=True)
            times = [time.perf_counter() for _ in stream]
            gaps = np.diff(times) * 1e3
            return {
                "tokens/s": (workload.max_tokens - 1) / (times[-1] - times[0]),
                "first token ms": 1e3 * (times[0] - begin),
                "gap ms p50": float(np.percentile(gaps, 50)),
                "gap ms p99": float(np.percentile(gaps, 99)),
            }
        results: Any = self._engine.generate(input_ids=prompts, sampling_params=params)
        seconds = time.perf_counter() - begin
        generated = sum(len(result["output_ids"]) for result in results)
        if generated != workload.count * workload.max_tokens:
            raise RuntimeError(f"{workload.row}: {generated} tokens came of {workload.count * workload.max_tokens}")
        prompt_tokens = workload.count * workload.prompt_tokens
        return {"seconds": seconds, "tokens/s": generated / seconds, "prompt tokens/s": prompt_tokens / seconds}

    def _timed(self, count: int, max_tokens: int) -> float:
        """Return the seconds of `count` requests at once."""
        assert self._engine is not None
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        prompts = self._prompts(count, PROMPT)
        begin = time.perf_counter()
        self._engine.generate(input_ids=prompts, sampling_params=params)
        return time.perf_counter() - begin

    def _prompts(self, count: int, num_tokens: int) -> list[list[int]]:
        self._seed += 1  # other prompts each time, else the prefix cache has them
        prompts: list[list[int]] = np.random.default_rng(self._seed).integers(3, 4000, (count, num_tokens)).tolist()
        return prompts

    def _with_idle(self, run: Callable[[], Figures]) -> Figures:
        """Its figures, and how long the device waited for the host between steps, at most."""
        before = self._idle()
        figures, after = run(), self._idle()
        counts = [b - a for a, b in zip(before.counts or [0] * len(after.counts), after.counts, strict=True)]
        gaps = dataclasses.replace(after, counts=counts)
        for share in (50, 99):
            bound = upper_bound(gaps, share / 100)
            seconds = bound if bound is not None else gaps.bounds[-1] if sum(counts) else 0.0  # or more
            figures[f"idle µs p{share}"] = 1e6 * seconds
        return figures

    def _idle(self) -> HistogramData:
        assert self._engine is not None
        found = self._engine.get_server_info()["internal_states"][0]["device_idle"]
        return HistogramData(found["bounds"], found["counts"], found["total"])

    def _tell(self, what: str, figures: Figures) -> None:
        print(what, figures, flush=True)
        write(self._figures, self._out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=CONFIGS, required=True)
    parser.add_argument("--stage", choices=("workloads", "sweep"), default="workloads")
    parser.add_argument("--compilation-cache-dir", type=Path, help="default: an empty one")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="palladio-h200-") as folder:
        cache = args.compilation_cache_dir or Path(folder) / "xla"
        bench = Bench(args.model, args.tiny, Path(folder), cache, args.out)
        if args.stage == "sweep":
            bench.measure_batch_sizes()
        else:
            bench.measure_workloads()
    return 0


if __name__ == "__main__":
    sys.exit(main())
