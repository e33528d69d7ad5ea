"""Palladio beside Hugging Face and llama.cpp: the same checkpoint, the same CPU, in float32, in one run.

    python benchmarks/peers/compare_hf.py [--models tiny 0.5b] [--workloads single batch prefix] [--json out.json]
    python benchmarks/peers/compare_hf.py --llama-server PATH --gguf tiny=PATH 0.5b=PATH -- --schedule-policy lpm

Sides: palladio-engine (offline) against hf-generate (`model.generate`), and palladio-server against hf-serve
(`transformers serve --continuous-batching`) and llama-server, all loaded by benchmarks/serving/serving.py
with the same texts.
Each side runs in a process of its own, one at a time, warms up once, and is ended after --limit seconds; a side that
cannot run is shown as such. Launch flags of palladio-server follow `--`.

Workloads: one request; 16 at once; 16 at once with a common prefix of 512 tokens, which the run before had too, so that
a prefix cache has it. Only a quiet machine gives figures: llama.cpp's threads spin while they wait for each other.

hf-generate needs torch; hf-serve needs `pip install 'transformers[serving]'` too. llama-server takes part where its
path is given, with each model as GGUF, made by llama.cpp's `convert_hf_to_gguf.py --outtype f32` (these checkpoints'
pre-tokenizer, which the script does not know by its hash, is "qwen2").
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import tokenizers

from benchmarks.support.checkpoints import make_checkpoint
from benchmarks.support.server_process import RunningServer, exit_on_sigterm, provenance, running_server
from palladio.load.client import Target
from palladio.load.runner import run_prompts
from palladio.load.workloads import WORDS, Workload
from palladio.utils import terminate_process

BATCH = 16
SIDES = ("palladio-engine", "hf-generate", "palladio-server", "hf-serve", "llama-server")
PAIRS = (
    ("palladio-engine", "hf-generate"),
    ("palladio-server", "hf-serve"),
    ("palladio-server", "llama-server"),
)
BEST_OF = 3
ENOUGH_SECONDS = 90.0  # a workload that has run for so long is not repeated


def workloads_of(model: str) -> dict[str, Workload]:
    new_tokens = {"tiny": 128, "0.5b": 32}[model]
    return {
        workload.name: workload
        for workload in (
            Workload("single", requests=1, max_tokens=new_tokens, prompt_tokens=32, concurrency=1),
            Workload("batch", requests=BATCH, max_tokens=new_tokens, prompt_tokens=32, concurrency=BATCH),
            Workload("prefix", requests=BATCH, max_tokens=32, prompt_tokens=544, concurrency=BATCH, shared_tokens=512),
        )
    }


class Prompts:
    """Texts of known length in tokens: the same for every side."""

    def __init__(self, checkpoint: str) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(checkpoint) / "tokenizer.json"))

    def texts(self, workload: Workload, run: int) -> list[str]:
        """Prompts of at least the workload's length, hardly more; only their common prefix is the same in every run."""
        shared = self._lengthen("", random.Random(workload.name), workload.shared_tokens)
        rng = random.Random(f"{workload.name} {run}")
        return [self._lengthen(shared, rng, workload.prompt_tokens) for _ in range(workload.requests)]

    def ids(self, workload: Workload, run: int) -> list[list[int]]:
        """The same as token ids, cut to one length."""
        return [self._encode(text)[: workload.prompt_tokens] for text in self.texts(workload, run)]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _lengthen(self, text: str, rng: random.Random, num_tokens: int) -> str:
        while len(self._encode(text)) < num_tokens:
            text = f"{text} {rng.choice(WORDS)}".strip()
        return text


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of one side; sent to its process as JSON.

    Attributes:
        flags: more launch flags of palladio-server.
        llama_server, gguf: its program and its copy of the checkpoint.
    """

    side: str
    model: str
    checkpoint: str
    workloads: list[str]
    flags: list[str]
    llama_server: str | None
    gguf: str | None


def best_of(workload: Workload, once: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The fastest of a few runs after one to warm up."""
    start = time.perf_counter()
    once(0)
    results: list[dict[str, Any]] = []
    while len(results) < BEST_OF and (not results or time.perf_counter() - start < ENOUGH_SECONDS):
        results.append(once(len(results) + 1))
    best = max(results, key=lambda result: float(result["tokens_per_second"]))
    return {"requests": workload.requests, "runs": len(results)} | best


def run_offline(task: Task, generate: Callable[[list[list[int]], int], int]) -> dict[str, Any]:
    """`generate` takes prompts and a number of new tokens for each, and says how many there were."""
    prompts = Prompts(task.checkpoint)

    def measure(workload: Workload) -> dict[str, Any]:
        def once(run: int) -> dict[str, Any]:
            ids = prompts.ids(workload, run)
            start = time.perf_counter()
            count = generate(ids, workload.max_tokens)
            return {"tokens_per_second": count / (time.perf_counter() - start)}

        return best_of(workload, once)

    workloads = workloads_of(task.model)
    return {name: measure(workloads[name]) for name in task.workloads}


def run_palladio_engine(task: Task) -> dict[str, Any]:
    from palladio import Engine

    with Engine(model_path=task.checkpoint, dtype="float32", max_running_requests=BATCH, compile="full") as engine:

        def generate(ids: list[list[int]], new_tokens: int) -> int:
            params = {"max_new_tokens": new_tokens, "temperature": 0.0, "ignore_eos": True}
            results = engine.generate(input_ids=ids, sampling_params=params)
            assert isinstance(results, list)
            return sum(result["meta_info"]["completion_tokens"] for result in results)

        return run_offline(task, generate)


def run_hf_generate(task: Task) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task.checkpoint, dtype=torch.float32).eval()

    def generate(ids: list[list[int]], new_tokens: int) -> int:
        inputs = torch.tensor(ids)
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int(output.shape[1] - inputs.shape[1]) * len(ids)

    return run_offline(task, generate)


def server_command(task: Task) -> tuple[list[str], dict[str, Any]]:
    """The launch command, and what to merge into each request."""
    match task.side:
        case "palladio-server":
            command = [sys.executable, "-m", "palladio.launch_server", "--model-path", task.checkpoint]
            command += [
                "--dtype",
                "float32",
                "--max-running-requests",
                str(BATCH),
                "--served-model-name",
                "*",
                "--compile",
                "full",
            ]
            return [*command, *task.flags], {}
        case "hf-serve":
            program = str(Path(sys.executable).with_name("transformers"))
            command = [program, "serve", task.checkpoint, "--continuous-batching", "--dtype", "float32"]
            # ignore_eos is unknown there; random weights hardly ever end by themselves
            return [*command, "--device", "cpu"], {"ignore_eos": None}
        case _:
            if task.llama_server is None or task.gguf is None:
                raise SystemExit("llama-server: give --llama-server and the model's --gguf")
            longest = max(
                workload.prompt_tokens + workload.max_tokens for workload in workloads_of(task.model).values()
            )
            command = [task.llama_server, "--model", task.gguf, "--parallel", str(BATCH)]
            command += ["--ctx-size", str(BATCH * (longest + 128)), "--threads", str(os.cpu_count()), "--no-webui"]
            return [*command, "--cache-type-k", "f32", "--cache-type-v", "f32", "--reasoning-format", "none"], {}


@contextlib.contextmanager
def server_of(command: list[str]) -> Iterator[RunningServer]:
    """Shows the end of its log if anything goes wrong."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with running_server(command, log, {"CUDA_VISIBLE_DEVICES": ""}) as server:
                yield server
        except (RuntimeError, TimeoutError):
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise


def run_server(task: Task) -> dict[str, Any]:
    command, extra = server_command(task)
    prompts = Prompts(task.checkpoint)
    workloads = workloads_of(task.model)
    figures = ("tokens_per_second", "ttft_p50", "itl_p50", "prompt_tokens", "cached_tokens")
    with server_of(command) as server:
        target = Target(f"{server.url}/v1", task.checkpoint, "chat", extra)

        async def load(workload: Workload, run: int) -> dict[str, Any]:
            async with target.client() as client:
                return await run_prompts(target, client, workload, prompts.texts(workload, run), 200)

        def measure(workload: Workload) -> dict[str, Any]:
            def once(run: int) -> dict[str, Any]:
                result = asyncio.run(load(workload, run))
                if result["failures"]:
                    raise RuntimeError("; ".join(result["errors"]))
                return {name: result[name] for name in figures}

            return best_of(workload, once)

        return {name: measure(workloads[name]) for name in task.workloads}


def run_side(task: Task) -> dict[str, Any]:
    match task.side:
        case "palladio-engine":
            return run_palladio_engine(task)
        case "hf-generate":
            return run_hf_generate(task)
        case _:
            return run_server(task)


def run_in_process(task: Task, limit: float) -> dict[str, Any]:
    """Return the figures of the side, or {"error": …}."""
    command = [sys.executable, __file__, "--task", json.dumps(dataclasses.asdict(task))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:g} s"}
    finally:
        if process.poll() is None:
            terminate_process(process)
    if process.returncode:
        return {"error": (errors.strip().splitlines() or ["?"])[-1][:300]}
    return {"workloads": json.loads(output.splitlines()[-1])}


def show(report: dict[str, Any], names: Sequence[str]) -> None:
    def table(title: str, figure: str, scale: float) -> None:
        print(f"\n{title:<24}" + "".join(f"{name:>10}" for name in names))
        for side, result in sides.items():
            rows = result.get("workloads", {})
            values = [rows.get(name, {}).get(figure) for name in names]
            if any(values) or figure == "tokens_per_second":
                cells = "".join(f"{'-':>10}" if value is None else f"{value * scale:>10.1f}" for value in values)
                print(f"  {side:<22}{cells}  {result.get('error', '')}")

    for model, sides in report["models"].items():
        table(f"{model}: tokens/s", "tokens_per_second", 1)
        for ours, theirs in PAIRS:
            a, b = (sides.get(side, {}).get("workloads", {}) for side in (ours, theirs))
            if a and b:
                ratios = (a[name]["tokens_per_second"] / b[name]["tokens_per_second"] for name in names)
                print(f"  {'ratio to ' + theirs:<22}" + "".join(f"{ratio:>9.2f}x" for ratio in ratios))
        table(f"{model}: ttft p50, ms", "ttft_p50", 1000)
        table(f"{model}: cached tokens", "cached_tokens", 1)


def main(argv: Sequence[str] | None = None) -> int:
    names = tuple(workloads_of("tiny"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("tiny", "0.5b"), default=("tiny", "0.5b"))
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="default: all; llama-server where it is given")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--llama-server", help="llama.cpp's server program")
    parser.add_argument(
        "--gguf", nargs="+", default=(), metavar="MODEL=PATH", help="the checkpoints for it, in float32"
    )
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds that one side may take")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "palladio", help="for checkpoints")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="more launch flags of palladio-server, after --")
    args = parser.parse_args(argv)
    exit_on_sigterm()
    if args.task:
        print(json.dumps(run_side(Task(**json.loads(args.task)))))
        return 0
    gguf = dict(item.split("=", 1) for item in args.gguf)
    sides = args.sides or [side for side in SIDES if side != "llama-server" or args.llama_server]
    report = provenance() | {"dtype": "float32", "models": {}}
    for model in args.models:
        checkpoint = str(make_checkpoint(model, args.cache))
        report["models"][model] = {}
        for side in sides:
            print(f"{model}: {side} …", file=sys.stderr, flush=True)
            task = Task(side, model, checkpoint, list(args.workloads), args.flags, args.llama_server, gguf.get(model))
            report["models"][model][side] = run_in_process(task, args.limit)
    show(report, args.workloads)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
