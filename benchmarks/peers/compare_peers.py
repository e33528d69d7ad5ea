"""Palladio beside llama.cpp and transformers on this CPU: the same checkpoint and load, medians, ratios.

    python benchmarks/peers/compare_peers.py [--models tiny 0.5b] [--cores 0,1] [--rounds 3] [--json out.json]
    python benchmarks/peers/compare_peers.py --models smollm2 gemma3-270m --sides palladio llama-bf16
    python benchmarks/peers/compare_peers.py --sides palladio llama-f32 llama-bf16 -- --num-continuous-decode-steps 4

Sides: palladio with default flags (and --compile full); palladio-flags with those after `--`, if there are any;
llama-f32, llama-bf16, llama-q8_0: llama.cpp's server, built here for this processor from the source package of
llama-cpp-python (peer_builds.py), with and without --kv-unified; transformers-f32, transformers-bf16: `transformers
serve --continuous-batching`, in the Python that --transformers names. A side that cannot be built or started is left
out, with the reason.

tiny and 0.5b have random weights; smollm2 and gemma3-270m are the published ones of `make real` (published.py), fetched
at the first call, the same numbers in bfloat16 for each side. Peak memory is that of a side's processes together.

Each round starts every side once, in another order, and loads it with every workload: one repeat that is not counted,
then --repeats. The server runs on --cores, the load on the others. A sample during which other programs used more than
--others cores, or in which a request failed or came short, is refused: it is in the report but in no median. Ratios are
Palladio's median by the best median of the peers in float32 and bfloat16, and by the best in 8 bits. --cpu avx2 shows
all sides a CPU with AVX2 and nothing newer (avx2_cpu.c), and builds llama.cpp for one.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.peers.compare_hf import Prompts
from benchmarks.peers.peer_builds import BuildError, avx2_library, build_llama_server, to_gguf, with_dtype
from benchmarks.peers.published import NAMES as PUBLISHED
from benchmarks.peers.published import make_published
from benchmarks.serving.serving import WORKLOADS
from benchmarks.support.checkpoints import make_checkpoint
from benchmarks.support.report import report, write
from benchmarks.support.server_process import (
    RunningServer,
    cpu_seconds_of_tree,
    exit_on_sigterm,
    peak_of_tree,
    provenance,
    running_server,
)
from palladio.load.client import Target
from palladio.load.runner import run_prompts
from palladio.load.workloads import Workload

SLOTS = 64  # requests that a server may run at once
POOL_TOKENS = 65_536  # of the cache of transformers
FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "sve", "i8mm", "bf16"),
)
SHORTER: Mapping[str, Any] = {  # of the model of half a billion parameters: what it does in a minute or so
    "single": {"max_tokens": 32},
    "small": {"max_tokens": 24},
    "many": {"requests": 64, "max_tokens": 24},
    "prefix": {"requests": 16, "max_tokens": 16},
    "long": {"requests": 3, "max_tokens": 16},
}


@dataclasses.dataclass(frozen=True)
class Side:
    """A server with the flags of one sort.

    Attributes:
        bits: of its weights: 32, 16 or 8. None: Palladio's, as its flags say.
        variants: its launch commands; each of them is measured, and the best one of a workload counts.
        extra: merged into each request; a null removes a field that the server does not know.
    """

    name: str
    bits: int | None
    variants: Mapping[str, Sequence[str]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One repeat.

    Attributes:
        other_cores: that other programs used meanwhile. error: why it does not count; None: it does.
    """

    tokens_per_second: float
    ttft_p50: float | None
    itl_p50: float | None
    other_cores: float
    error: str | None


def cpu_features() -> list[str]:
    """List the features that decide how fast a CPU multiplies."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return [name for name in FEATURES if name in words]


def busy_seconds() -> float:
    """CPU seconds that all programs of this machine have used."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def workloads_of(model: str, names: Sequence[str]) -> list[Workload]:
    changes = SHORTER if model == "0.5b" else {}
    return [dataclasses.replace(WORKLOADS[name], **changes.get(name, {})) for name in names]


def sides_of(
    args: argparse.Namespace, checkpoint: Path, workloads: Sequence[Workload], published: Path | None = None
) -> Iterator[Side]:
    """Yield the sides that can run here; print the reasons of the others to standard error.

    Args:
        published: the GGUF file that the checkpoint was made of.
    """
    palladio = [sys.executable, "-m", "palladio", "serve", "--model-path", str(checkpoint), "--compile", "full"]
    threads = str(len(args.cores))
    longest = max(workload.prompt_tokens + workload.max_tokens for workload in workloads) + 128
    makers: dict[str, Callable[[], Side]] = {"palladio": lambda: Side("palladio", None, {"": palladio})}
    if args.flags:
        makers["palladio-flags"] = lambda: Side("palladio-flags", None, {"": [*palladio, *args.flags]})

    def llama(dtype: str, bits: int) -> Side:
        build = build_llama_server(args.cache / "peers", jobs=len(args.cores), for_avx2=args.cpu == "avx2")
        if published:
            gguf = with_dtype(build, published, dtype)
        else:
            gguf = to_gguf(build, checkpoint, dtype, args.transformers)
        # Its threads, slots and cache for the whole load; the cache of float32 weights in float32, as Palladio's is.
        common = [str(build.server), "--model", str(gguf), "--threads", threads, "--threads-batch", threads]
        common += ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * longest), "--no-warmup", "--reasoning-format"]
        common += ["none", *(("--cache-type-k", "f32", "--cache-type-v", "f32") if dtype == "f32" else ())]
        return Side(f"llama-{dtype}", bits, {"split": common, "unified": [*common, "--kv-unified"]})

    def transformers(dtype: str, name: str, bits: int) -> Side:
        command = [args.transformers, "-m", "transformers.cli.transformers", "serve", str(checkpoint)]
        command += ["--continuous-batching", "--device", "cpu", "--dtype", name]
        # Of its own accord its cache takes nearly all memory, and more than there is where others use some.
        command += ["--cb-block-size", "32", "--cb-num-blocks", str(POOL_TOKENS // 32), "--cb-max-batch-tokens", "1024"]
        endless = json.dumps({"eos_token_id": -1})  # it refuses ignore_eos
        return Side(f"transformers-{dtype}", bits, {"": command}, {"ignore_eos": None, "generation_config": endless})

    for dtype, bits in (("f32", 32), ("bf16", 16), ("q8_0", 8)):
        makers[f"llama-{dtype}"] = lambda dtype=dtype, bits=bits: llama(dtype, bits)  # type: ignore[misc]
    makers["transformers-f32"] = lambda: transformers("f32", "float32", 32)
    makers["transformers-bf16"] = lambda: transformers("bf16", "bfloat16", 16)
    unknown = sorted({*(args.sides or ())} - makers.keys())
    if unknown:
        raise SystemExit(f"--sides: {', '.join(unknown)}: known are {', '.join(makers)}")
    for name, make in makers.items():
        if not args.sides or name in args.sides:
            try:
                yield make()
            except BuildError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def started(command: Sequence[str], cores: Sequence[int], *, as_avx2: bool) -> Iterator[RunningServer]:
    """The server on its cores. Shows the end of its log if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
        environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(len(cores))}
        if as_avx2:
            environment["LD_PRELOAD"] = str(avx2_library(Path(folder)))
        try:
            with running_server(pinned, log, environment) as one:
                yield one
        except (RuntimeError, TimeoutError) as error:
            raise BuildError(f"{error}; its log ends with: {log.read_text(errors='replace')[-600:]}") from error


def measure(server: RunningServer, target: Target, workload: Workload, texts: list[str], most_others: float) -> Sample:
    """One repeat."""
    assert server.process is not None, "see `started`"
    pid = server.process.pid

    async def load() -> dict[str, Any]:
        async with target.client() as client:
            return await run_prompts(target, client, workload, texts, 600)

    before = busy_seconds(), cpu_seconds_of_tree(pid), time.process_time(), time.perf_counter()
    result = asyncio.run(load())
    after = busy_seconds(), cpu_seconds_of_tree(pid), time.process_time(), time.perf_counter()
    busy, server_cpu, ours, wall = (late - early for early, late in zip(before, after, strict=True))
    others = max(0.0, (busy - server_cpu - ours) / wall)
    error = f"{result['failures']} failed: {'; '.join(result['errors'])}" if result["failures"] else None
    if error is None and others > most_others:
        error = f"other programs used {others:.1f} cores"
    return Sample(result["tokens_per_second"], result["ttft_p50"], result["itl_p50"], round(others, 2), error)


def run_side(
    side: Side,
    args: argparse.Namespace,
    prompts: Prompts,
    target: Target,
    workloads: Sequence[Workload],
    number: int,
) -> dict[str, Any]:
    """All workloads on each variant; by workload and variant, the samples.

    Args:
        target: without the server's address.
    """
    found: dict[str, Any] = {}
    for variant, command in side.variants.items():
        start = time.perf_counter()
        try:
            with started(command, args.cores, as_avx2=args.cpu == "avx2") as server:
                assert server.process is not None, "see `started`"
                found.setdefault("ready_seconds", {})[variant] = round(time.perf_counter() - start, 1)
                there = dataclasses.replace(target, base_url=f"{server.url}/v1", extra=dict(side.extra))
                for workload in workloads:
                    samples = found.setdefault(workload.name, {}).setdefault(variant, [])
                    for repeat in range(args.repeats + 1):
                        texts = prompts.texts(workload, number * (args.repeats + 1) + repeat)
                        sample = measure(server, there, workload, texts, args.others)
                        if repeat:
                            samples.append(dataclasses.asdict(sample))
                            print(f"  {side.name} {variant} {workload.name}: {sample}", file=sys.stderr, flush=True)
                found.setdefault("peak_gb", {})[variant] = round(peak_of_tree(server.process.pid) / 1e9, 2)
        except BuildError as error:
            found.setdefault("errors", []).append(str(error))
            print(f"{side.name} {variant}: {error}", file=sys.stderr, flush=True)
    return found


def medians(rounds: Sequence[Mapping[str, Any]], name: str) -> tuple[float | None, int, int]:
    """Return for a side in a workload its best variant's median of tokens per second, and the numbers of samples that
    count and that do not."""
    variants: dict[str, list[float]] = {}
    refused = 0
    for one in rounds:
        for variant, samples in one.get(name, {}).items():
            good = [sample["tokens_per_second"] for sample in samples if sample["error"] is None]
            refused += len(samples) - len(good)
            variants.setdefault(variant, []).extend(good)
    best = max((statistics.median(values), len(values)) for values in [*variants.values(), [0.0]] if values)
    return (best[0], best[1], refused) if best[0] else (None, 0, refused)


def summarize(sides: Sequence[Side], rounds: Mapping[str, Sequence[Any]], names: Sequence[str]) -> dict[str, Any]:
    """Medians, counts and ratios by workload."""
    table: dict[str, Any] = {}
    for name in names:
        rows = {side.name: medians(rounds[side.name], name) for side in sides}
        row: dict[str, Any] = {
            side: {"tokens_per_second": median and round(median, 1), "samples": good, "refused": refused}
            for side, (median, good, refused) in rows.items()
        }
        for ours in (side.name for side in sides if side.bits is None):
            for title, bits in (("f32 or bf16", (32, 16)), ("8 bits", (8,))):
                peers = [rows[side.name][0] for side in sides if side.bits in bits]
                best, own = max((value for value in peers if value), default=None), rows[ours][0]
                if best and own:
                    row[f"{ours} / best of {title}"] = round(own / best, 2)
        table[name] = row
    memory = {
        side.name: [peak for one in rounds[side.name] for peak in one.get("peak_gb", {}).values()] for side in sides
    }
    table["peak GB"] = {name: max(peaks) for name, peaks in memory.items() if peaks}
    return table


def show(model: str, table: Mapping[str, Any]) -> None:
    columns = list(dict.fromkeys(key for row in table.values() for key in row))
    print(f"\n{model}: tokens/s, medians (samples that count + refused ones)")
    print(f"{'':<34}" + "".join(f"{name:>18}" for name in table))
    for column in columns:
        cells = [row.get(column) for row in table.values()]
        texts = [
            "-"
            if cell is None
            else f"{cell['tokens_per_second'] or '-'} ({cell['samples']}+{cell['refused']})"
            if isinstance(cell, dict)
            else f"{cell:.2f}"
            for cell in cells
        ]
        print(f"{column:<34}" + "".join(f"{text:>18}" for text in texts))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("tiny", "0.5b", *PUBLISHED), default=("tiny", "0.5b"))
    parser.add_argument("--sides", nargs="+", help="default: all that can run here")
    names = ("single", "small", "many", "prefix", "long")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--cores", default="0,1", help="of the servers")
    parser.add_argument("--cpu", choices=("this", "avx2"), default="this", help="avx2: hide what is newer than AVX2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="of a workload in a round, beside the first")
    parser.add_argument("--others", type=float, default=0.3, help="cores that other programs may use during a sample")
    parser.add_argument(
        "--transformers", default=sys.executable, help="Python with torch, accelerate and transformers[serving]"
    )
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "palladio", help="checkpoints, builds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="launch flags of palladio-flags, after --")
    args = parser.parse_args(argv)
    if shutil.which("taskset") is None:
        parser.error("needs the program taskset (util-linux)")
    args.cores = [int(core) for core in args.cores.split(",")]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    exit_on_sigterm()
    os.sched_setaffinity(0, os.sched_getaffinity(0) - set(args.cores) or set(args.cores))
    features = [name for name in cpu_features() if args.cpu == "this" or name in ("avx2", "fma", "f16c")]
    figures: dict[str, Any] = provenance() | {"cpu_features": features, "cores": args.cores, "models": {}}
    print(f"CPU features: {' '.join(figures['cpu_features'])}", file=sys.stderr)
    for model in args.models:
        if model in PUBLISHED:
            checkpoint, file = make_published(model, args.cache, args.transformers)
        else:
            checkpoint, file = make_checkpoint(model, args.cache), None
        workloads = workloads_of(model, args.workloads)
        sides, prompts = list(sides_of(args, checkpoint, workloads, file)), Prompts(str(checkpoint))
        # Not each published file has a chat template.
        target = Target("", str(checkpoint), "completions" if file else "chat")
        rounds: dict[str, list[Any]] = {side.name: [] for side in sides}
        for number in range(args.rounds):
            turn = number % len(sides)
            for side in [*sides[turn:], *sides[:turn]]:
                rounds[side.name].append(run_side(side, args, prompts, target, workloads, number))
                table = summarize(sides, rounds, args.workloads)
                figures["models"][model] = {"table": table, "rounds": rounds}
                write(figures, args.json)
        show(model, figures["models"][model]["table"])
    report("peers/compare_peers.py", argv, figures, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
