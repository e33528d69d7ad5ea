"""Numerics and speed of the offline engine on jax's default device: does a GPU compute what the CPU does, and how fast?

    benchmarks/h200.sh smoke
    python benchmarks/gpu/gpu_smoke.py --tiny --out /tmp/results  # the same on a small model, to try the script itself

Needs neither a checkpoint nor the server's packages: the weights are random. Each stage is a process of its own with a
time limit, so that one that fails or hangs leaves the others' figures. A table comes last; the figures are also written
as JSON. The exit status tells whether all stages ended and all checks hold.
"""

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.gpu.gpu_numerics import Figures, numerics

TOTAL_SECONDS = 450.0
LEFT_OUT = "left out"  # by --only
GREEDY_PROMPTS, GREEDY_TOKENS = 8, 48


def greedy(tiny: bool, folder: Path) -> Figures:
    """Greedy tokens of the tiny model in float32, on the device that the environment chooses."""
    import numpy as np

    from palladio import Engine
    from palladio.flags.default_model import default_model_path

    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 2000, int(n)).tolist() for n in rng.integers(1, 150, GREEDY_PROMPTS)]
    with Engine(
        str(default_model_path()),
        skip_tokenizer_init=True,
        dtype="float32",
        context_length=512,
        max_running_requests=4,
        max_total_tokens=4096,
        chunked_prefill_size=64,
        compilation_cache_dir="",
    ) as engine:
        results: Any = engine.generate(
            input_ids=prompts,
            sampling_params={"temperature": 0.0, "max_new_tokens": GREEDY_TOKENS, "ignore_eos": True},
        )
        device = engine.get_server_info()["device"]
    return {"device": device, "tokens": [result["output_ids"] for result in results]}


def engine_flags(tiny: bool, folder: Path) -> dict[str, Any]:
    """Flags of the measured engine; two engines with the same `folder` share compiled programs."""
    from benchmarks.support.checkpoints import HALF_BILLION

    path = folder / "model"
    path.mkdir(exist_ok=True)
    small = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 4096}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    (path / "config.json").write_text(json.dumps(HALF_BILLION | (small if tiny else {})))
    return {
        "model_path": str(path),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "context_length": 4096,
        "max_running_requests": 16 if tiny else 256,
        "chunked_prefill_size": 64 if tiny else 4096,
        "max_total_tokens": 8192 if tiny else 400_000,
        "compilation_cache_dir": str(folder / "xla"),
        "random_seed": 0,
    }


def throughput(tiny: bool, folder: Path) -> Figures:
    """Tokens per second through Engine, and what its start took."""
    import jax
    import numpy as np

    from palladio import Engine

    start = time.perf_counter()
    engine = Engine(**engine_flags(tiny, folder))
    figures: Figures = {"seconds to ready": time.perf_counter() - start}
    info = engine.get_server_info()
    for name in ("device", "dtype", "num_programs", "compile_seconds", "cache_hits", "max_total_tokens"):
        figures[name] = info[name]
    rng = np.random.default_rng(0)

    def load(count: int, prompt_tokens: int, max_tokens: int, **sampling: Any) -> Figures:
        prompts = rng.integers(3, 4000, (count, prompt_tokens)).tolist()
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True, **sampling}
        begin = time.perf_counter()
        results: Any = engine.generate(input_ids=prompts, sampling_params=params)
        seconds = time.perf_counter() - begin
        generated = sum(len(result["output_ids"]) for result in results)
        assert generated == count * max_tokens, f"{generated} tokens came of {count * max_tokens}"
        return {"seconds": seconds, "tokens/s": generated / seconds, "prompt tokens/s": count * prompt_tokens / seconds}

    def single(max_tokens: int) -> Figures:
        prompt = rng.integers(3, 4000, 32).tolist()
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
        begin = time.perf_counter()
        times = [
            time.perf_counter() - begin for _ in engine.generate(input_ids=prompt, sampling_params=params, stream=True)
        ]
        decode = (max_tokens - 1) / (times[-1] - times[0])
        return {"seconds": times[-1], "tokens/s": decode, "first token ms": 1e3 * times[0]}

    tokens, many, long_prompt = (16, (4, 12), 96) if tiny else (256, (64, 200), 1024)
    load(many[0], 32, 8)  # the first steps also fill allocators and caches
    workloads: dict[str, Callable[[], Figures]] = {"1 request": lambda: single(tokens)}
    for count in many:
        workloads[f"{count} requests"] = functools.partial(load, count, 32, tokens)
    workloads |= {
        f"{many[0]} requests, sampled": lambda: load(many[0], 32, tokens, temperature=0.8, top_p=0.9, top_k=50),
        f"{many[0]} requests, penalties": lambda: load(many[0], 32, tokens, temperature=0.8, presence_penalty=0.5),
        f"{many[0]} prompts of {long_prompt}": lambda: load(many[0], long_prompt, tokens // 4),
        f"prefill {many[0]}×{long_prompt}": lambda: load(many[0], long_prompt, 1),
    }
    figures["workloads"] = {}
    for name, run in workloads.items():
        figures["workloads"][name] = run()
        print(f"{name}: {figures['workloads'][name]}", flush=True)
    state = engine.get_server_info()["internal_states"][0]
    memory = state["memory"]
    figures["memory"] = {
        "planned": sum(memory[name] for name in ("weights", "kv_cache", "state", "workspace")),
        "peak": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    }
    engine.shutdown()
    compiles, fault = state["num_compiles_after_ready"], state["integrity_error"]
    return figures | {"compiled while serving": compiles, "integrity": fault, "ok": compiles == 0 and fault is None}


def host(tiny: bool, folder: Path) -> Figures:
    """Parts of a decode step in µs; the second start, so its programs come from the cache."""
    from benchmarks.engine.host_overhead import measure
    from palladio.runtime.core.engine_core import EngineCore
    from palladio.runtime.interface.config.config import EngineConfig

    start = time.perf_counter()
    core = EngineCore.create(EngineConfig.from_flags(engine_flags(tiny, folder)), lambda progress: None)
    figures: Figures = {"seconds to ready, warm": time.perf_counter() - start, "cache hits": core.ready.cache_hits}
    counts, steps = ((1, 8), 60) if tiny else ((1, 64, 200), 200)
    figures["steps"] = [measure(core, count, 0, steps, sampled=False, uses_device=True) for count in counts]
    return figures


STAGES: dict[str, tuple[Callable[[bool, Path], Figures], float]] = {  # what runs, and its limit in seconds
    "numerics": (numerics, 120.0),
    "greedy": (greedy, 150.0),
    "throughput": (throughput, 300.0),
    "host": (host, 150.0),
}


def run_stage(stage: str, tiny: bool, folder: Path, limit: float, **environment: str) -> Figures:
    """A stage in a process of its own; on failure {"error": …}."""
    result = folder / f"{stage}-{threading.get_ident()}.json"
    command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder), "--result", str(result)]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command + ["--tiny"] * tiny, env={**os.environ, **environment}, timeout=max(1.0, limit), check=False
        )
        figures = json.loads(result.read_text()) if result.exists() else {"error": f"exit status {done.returncode}"}
    except subprocess.TimeoutExpired:
        figures = {"error": f"took more than {limit:.0f} s"}
    return figures | {"stage seconds": time.perf_counter() - start}


def compare_greedy(tiny: bool, folder: Path, limit: float) -> Figures:
    """The stage "greedy" on this device and on the CPU, side by side."""
    runs: dict[str, Figures] = {}

    def run(name: str, **environment: str) -> None:
        runs[name] = run_stage("greedy", tiny, folder, limit, JAX_DEFAULT_MATMUL_PRECISION="highest", **environment)

    threads = [
        threading.Thread(target=run, args=("device",)),
        threading.Thread(target=run, args=("cpu",), kwargs={"JAX_PLATFORMS": "cpu"}),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [f"{name}: {figures['error']}" for name, figures in runs.items() if "error" in figures]
    if failed:
        return {"error": "; ".join(failed)}
    pairs = list(zip(runs["device"]["tokens"], runs["cpu"]["tokens"], strict=True))
    equal = sum(ours == theirs for ours, theirs in pairs)
    return {
        "devices": [runs[name]["device"] for name in ("device", "cpu")],
        "equal": f"{equal}/{len(pairs)}",
        "ok": equal == len(pairs),
        "stage seconds": max(figures["stage seconds"] for figures in runs.values()),
    }


def table(report: Figures) -> list[tuple[str, str, str]]:
    """Return rows of (name, value, verdict)."""
    rows: list[tuple[str, str, str]] = []

    def verdict(figures: Figures) -> str:
        return "ok" if figures["ok"] else "WRONG"

    for stage in STAGES:
        figures = report[stage]
        if "error" in figures:
            if figures["error"] != LEFT_OUT:
                rows.append((stage, figures["error"], "FAILED"))
            continue
        if stage == "numerics":
            for part in ("attention", "products"):
                for name, error in figures[part]["max error"].items():
                    rows.append((f"{part} error, {name}", f"{error:.2g}", verdict(figures[part])))
            for tier, equal in figures["sampler"]["equal"].items():
                rows.append((f"sampler tokens as on CPU, {tier}", equal, verdict(figures["sampler"])))
        elif stage == "greedy":
            rows.append(("greedy answers as on CPU", figures["equal"], verdict(figures)))
        elif stage == "throughput":
            start = f"{figures['seconds to ready']:.1f} s, {figures['compile_seconds']:.1f} s of it compiling"
            rows.append(("cold start", f"{start} {figures['num_programs']} programs", ""))
            for name, load in figures["workloads"].items():
                unit = "prompt tokens/s" if name.startswith("prefill") else "tokens/s"
                first = f", first token {load['first token ms']:.1f} ms" if "first token ms" in load else ""
                rows.append((name, f"{load[unit]:,.0f} {unit}{first}", ""))
            planned, peak = (figures["memory"][name] for name in ("planned", "peak"))
            share = f"{planned / 2**30:.2f} GiB" + (f", {planned / peak:.3f} of the peak" if peak else "")
            rows.append(("memory planned", share, ""))
            rows.append(("compiled while serving", str(figures["compiled while serving"]), verdict(figures)))
        else:
            rows.append(("warm start", f"{figures['seconds to ready, warm']:.1f} s", ""))
            for step in figures["steps"]:
                value = f"{step['step']:,.0f} µs: host {step['host']:,.0f}, waiting {step['wait']:,.0f}"
                rows.append((f"decode step of {step['requests']}", value, ""))
    return rows


def versions() -> Figures:
    from importlib.metadata import PackageNotFoundError, version

    found: Figures = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "numpy", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the JSON report")
    parser.add_argument("--only", choices=STAGES, nargs="+", default=list(STAGES))
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="that all stages may take together")
    for internal in ("--stage", "--folder", "--result"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.stage:
        figures = STAGES[args.stage][0](args.tiny, Path(args.folder))
        Path(args.result).write_text(json.dumps(figures))
        return 0
    begin = time.perf_counter()
    report: Figures = {
        "command": "benchmarks/h200.sh smoke" + " --tiny" * args.tiny,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"gpu_smoke{'_tiny' * args.tiny}_{time.strftime('%Y%m%d_%H%M%S')}.json"
    with tempfile.TemporaryDirectory() as name:
        for stage in STAGES:
            if stage not in args.only:
                report[stage] = {"error": LEFT_OUT}
                continue
            print(f"--- {stage}", flush=True)
            limit = min(STAGES[stage][1], args.seconds - (time.perf_counter() - begin))
            run = compare_greedy if stage == "greedy" else None
            report[stage] = run(args.tiny, Path(name), limit) if run else run_stage(stage, args.tiny, Path(name), limit)
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    rows = table(report)
    device = report["throughput"].get("device", "?")
    print(f"\n{device}; {', '.join(f'{key} {value}' for key, value in report['versions'].items())}")
    for what, value, verdict in rows:
        print(f"{what:<38} {value:<60} {verdict}")
    print(f"{time.perf_counter() - begin:.0f} s; written to {path}")
    return 1 if any(verdict in ("WRONG", "FAILED") for *_, verdict in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
