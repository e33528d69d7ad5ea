"""Everything that is measured on an H200, part by part, each in a process of its own with a limit; a table comes last.

    benchmarks/h200.sh                                # what this is called by
    JAX_PLATFORMS=cpu benchmarks/h200.sh --tiny       # tries the scripts themselves, without a GPU

A part that fails or is too slow costs only its own rows. Figures of all parts are written as one JSON file.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.gpu.gpu_smoke import versions

ROOMS = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 465.0
TINY_FACTOR = 3.0  # how much longer a part may take where kernels are interpreted

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A script of the run.

    Attributes:
        arguments: {out} is a file for its figures, or with `folder` a folder for them; {cache} a folder of compiled
            programs that all parts share; {seconds} its time limit.
        seconds: its time limit.
        memory: share of the device's memory that jax may take; 0: jax's own default.
        xla_flags: flags in addition to those of the environment.
    """

    arguments: tuple[str, ...]
    seconds: float
    memory: float = 0.0
    xla_flags: str = ""
    folder: bool = False


def _engine(model: str, stage: str, seconds: float) -> Part:
    options = ("--model", model, "--stage", stage, "--compilation-cache-dir", "{cache}", "--out", "{out}")
    # Both stages have it, for it is part of what programs are found by: traces then show CUDA graphs as they run.
    return Part(("gpu/h200_engine.py", *options), seconds, 0.95, "--xla_enable_command_buffers_during_profiling=true")


PARTS = {  # correctness first, then what there are goals for; a sweep is its model's second start
    "numerics": Part(
        ("gpu/gpu_smoke.py", "--only", "numerics", "greedy", "--seconds", "{seconds}", "--out", "{out}"),
        70,
        folder=True,
    ),
    "kernels": Part(("gpu/kernels.py", "--torch-seconds", "30", "--out", "{out}"), 100),
    "engine qwen": _engine("qwen2.5-0.5b", "workloads", 140),
    "engine llama": _engine("llama-3.1-8b", "workloads", 140),
    "sweep qwen": _engine("qwen2.5-0.5b", "sweep", 40),
    "sweep llama": _engine("llama-3.1-8b", "sweep", 50),
    "peers": Part(("peers/h200_peers.py", "--out", "{out}"), 60),
}
PARTS_WITH_GOALS = ("numerics", "kernels", "engine qwen", "engine llama")


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """A row of the table.

    Attributes:
        part, row: where its figure is. unit: of the figure, and its name there.
        limit: what the card allows, by bytes or operations. goal: least that is wanted.
    """

    name: str
    part: str
    row: str
    unit: str
    limit: str
    goal: float


GOALS = (
    Goal("Qwen2.5-0.5B, 1 request, decode", "engine qwen", "qwen decode 1", "tokens/s", "4,300", 1e3),
    Goal("Qwen2.5-0.5B, 5,000 × 128, 200 running", "engine qwen", "qwen chat 5000", "tokens/s", "", 40e3),
    Goal("Llama-3.1-8B, 1 request, decode", "engine llama", "llama decode 1", "tokens/s", "286", 215),
    Goal("Llama-3.1-8B, 500 running × 500", "engine llama", "llama running 500", "tokens/s", "", 20e3),
    # 1.05e15 operations for 65,536 tokens, an eighth of them attention's: 60 % of 790 TFLOP/s.
    Goal(
        "Llama-3.1-8B, prefill 8 × 8,192", "engine llama", "llama prefill 8x8192", "prompt tokens/s", "49,300", 29_600
    ),
)
DECODE_SHARE, PREFILL_TFLOPS = 0.8, 0.55 * 790  # goals of the attention kernels' workloads named below
KERNEL_GOALS = ("decode 64×4,096", "decode 64×4,096, pages of 64", "decode 64×4,096, pages of 128", "prefill 8×4,096")


def run_part(part: Part, tiny: bool, seconds: float, cache: Path) -> Figures:
    """Run a part, and return its figures, also if it timed out or failed; then "error" says so."""
    with tempfile.TemporaryDirectory(prefix="palladio-h200-") as folder:
        out = Path(folder) if part.folder else Path(folder) / "figures.json"
        values = {"out": out, "cache": cache, "seconds": f"{0.95 * seconds:.0f}"}
        script, *arguments = (argument.format_map(values) for argument in part.arguments)
        command = [sys.executable, str(ROOMS / script), *arguments, *["--tiny"] * tiny]
        environment = dict(os.environ)
        if part.memory and not tiny:
            environment["XLA_CLIENT_MEM_FRACTION"] = str(part.memory)
        if part.xla_flags:
            environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {part.xla_flags}".strip()
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, process_group=0)  # with what it starts itself
        error = ""
        try:
            if status := process.wait(timeout=seconds):
                error = f"exit status {status}"
        except subprocess.TimeoutExpired:
            error = f"took more than {seconds:.0f} s"
        finally:  # whatever ends this script must not leave a part behind, which holds the device's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return (
            _written(Path(folder)) | {"part seconds": time.perf_counter() - start} | ({"error": error} if error else {})
        )


def _written(folder: Path) -> Figures:
    """By a part; a file that it was just writing when it was killed has nothing."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        with contextlib.suppress(ValueError):
            figures: Figures = json.loads(path.read_text(encoding="utf-8"))
            return figures
    return {}


def find(figures: Any, path: Sequence[str]) -> Any:
    """figures[path[0]][path[1]] …; None where there is no such figure."""
    for name in path:
        figures = figures.get(name) if isinstance(figures, dict) else None
    return figures


def table(report: Figures) -> list[tuple[str, str, str, str]]:
    """Return rows of (name, figure, limit, verdict)."""
    rows, tiny = [], report["command"].endswith("--tiny")  # which is no measure of anything
    for wanted in GOALS:
        value = find(report["parts"].get(wanted.part), ("rows", wanted.row, wanted.unit))
        figure = "missing" if value is None else f"{value:,.0f} {wanted.unit}"
        verdict = "MISSING" if value is None else "reached" if value >= wanted.goal else f"below {wanted.goal:,.0f}"
        if tiny and value is not None:
            verdict = "tiny"
        rows.append((wanted.name, figure, wanted.limit, verdict))
    kernels = report["parts"].get("kernels", {})
    for row in kernels.get("workloads", []):
        share, rate = row["share of copy bandwidth"], row["TFLOP/s"]
        decodes = row["workload"].startswith("decode")
        torch = find(kernels, ("torch", "µs", row["workload"])) or {}
        beside = "".join(f"; {name} {value:,.0f} µs" for name, value in torch.items())
        figure = f"{row['µs']:,.0f} µs, " + (f"{share:.0%} of copy bandwidth" if decodes else f"{rate:,.0f} TFLOP/s")
        verdict = "ok" if row["ok"] else "WRONG"
        if row["ok"] and row["workload"].removesuffix(" (gpu_mosaic)") in KERNEL_GOALS:
            reached = share >= DECODE_SHARE if decodes else rate >= PREFILL_TFLOPS
            verdict = (
                "reached" if reached else f"below {DECODE_SHARE:.0%}" if decodes else f"below {PREFILL_TFLOPS:.0f}"
            )
        rows.append((f"kernel: {row['workload']}", figure + beside, "", verdict))
    rows += _engine_rows(report["parts"])
    rows += _peer_rows(report["parts"].get("peers", {}))
    for name, figures in report["parts"].items():
        if "error" in figures:
            rows.append((f"part {name}", figures["error"], "", "FAILED"))
    return rows


def _engine_rows(parts: Figures) -> list[tuple[str, str, str, str]]:
    """Starts, gaps between steps, batch sizes."""
    rows = []
    for name, part in parts.items():
        model = name.split()[-1]
        for engine in part.get("engines", []):
            built, hits = engine["num_programs"], engine["cache_hits"]
            start = "cold start" if not hits else "warm start" if hits == built else "start"
            told = f"{engine['seconds to ready']:.1f} s, {built} programs in {engine['compile_seconds']:.1f} s"
            told += f", {hits} of them found; attention by {engine['attention_kernels']}"
            rows.append((f"{model}, {start}, {engine['max_running_requests']} running", told, "", ""))
        for row, figures in part.get("rows", {}).items():
            gaps = ", ".join(f"p{share} at most {figures[f'idle µs p{share}']:,.0f} µs" for share in (50, 99))
            rows.append((f"{row}: idle gap between steps", gaps, "", ""))
        for size in part.get("batch sizes", []):
            told = f"{size['tokens/s']:,.0f} tokens/s ± {size['spread']:.0%}, {size['step ms']:.2f} ms a step"
            told += f", {size['share of limit']:.0%}"
            rows.append((f"{model}, {size['requests']} at once, decode", told, f"{size['limit tokens/s']:,.0f}", ""))
        for traced, figures in part.get("traces", {}).items():
            if "error" in figures:
                rows.append((f"{model}, trace of {traced}", figures["error"], "", ""))
                continue
            told = f"{figures['kernels a step']:.0f} kernels a step, device busy {figures['busy share']:.0%}"
            gaps = f", gap µs p50 {figures['gap µs p50']:.1f} p99 {figures['gap µs p99']:.1f}"
            rows.append((f"{model}, trace of {traced}", told + gaps, "", ""))
    return rows


def _peer_rows(peers: Figures) -> list[tuple[str, str, str, str]]:
    rows = []
    for kind, what in (("graph", "torch decode step"), ("continuous batching", "generate_batch")):
        for name, found in peers.get(kind, {}).items():
            told = [
                f"{key} {value:,.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items()
            ]
            rows.append((f"{what}: {name}", ", ".join(told), "", ""))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the scripts themselves")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the JSON report")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument(
        "--cache", type=Path, help="folder of compiled programs; default: an empty one, for a cold start"
    )
    parser.add_argument("--elapsed", type=float, default=0.0, metavar="S", help="seconds of the time that are over")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of run_part's end
    begin = time.perf_counter() - args.elapsed
    report: Figures = {
        "command": "benchmarks/h200.sh" + " --tiny" * args.tiny,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "versions": versions(),
        "parts": {},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"h200{'_tiny' * args.tiny}_{time.strftime('%Y%m%d_%H%M%S')}.json"
    factor = TINY_FACTOR if args.tiny else 1.0
    with tempfile.TemporaryDirectory(prefix="palladio-h200-cache-") as empty:
        for name in args.only:
            print(f"--- {name}", flush=True)
            left = factor * TOTAL_SECONDS - (time.perf_counter() - begin)
            seconds = max(1.0, min(factor * PARTS[name].seconds, left))
            report["parts"][name] = run_part(PARTS[name], args.tiny, seconds, args.cache or Path(empty))
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print("\n" + ", ".join(f"{key} {value}" for key, value in report["versions"].items()))
    rows = table(report)
    for what, figure, limit, verdict in rows:
        print(f"{what:<52} {figure:<64} {limit:<20} {verdict}")
    print(f"{time.perf_counter() - begin:.0f} s; written to {path}")
    return 1 if any(verdict in ("WRONG", "FAILED", "MISSING") for *_, verdict in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
