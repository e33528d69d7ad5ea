"""Palladio and Hugging Face on the same checkpoint, the same CPU, in float32, in one run.

    python benchmarks/compare_hf.py [--models tiny 0.5b] [--batches 1 16] [--json out.json]

Sides: palladio-engine (offline) against hf-generate (`model.generate`), and palladio-server against hf-serve
(`transformers serve --continuous-batching`), both loaded by benchmarks/serving.py. Each side runs in a process of its
own, one at a time, warms up once, and is ended after --limit seconds; a side that cannot run is shown as such.
hf-generate needs torch; hf-serve needs `pip install 'transformers[serving]'` too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checkpoints import make_checkpoint
from serving import Target, Workload, run_workload

from palladio.utils import terminate_process

PROMPT_TOKENS = 32
NEW_TOKENS = {"tiny": 128, "0.5b": 32}
SIDES = ("palladio-engine", "hf-generate", "palladio-server", "hf-serve")
PAIRS = (("palladio-engine", "hf-generate"), ("palladio-server", "hf-serve"))


def prompt_ids(batch: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(300, 4000) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]


def run_palladio_engine(checkpoint: str, batches: Sequence[int], tokens: int) -> dict[int, float]:
    from palladio import Engine

    params = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    with Engine(model_path=checkpoint, dtype="float32", max_running_requests=max(batches)) as engine:

        def generate(batch: int, seed: int) -> int:
            # a first token of its own for each run, so that no run finds its prompts in a prefix cache
            prompts = [[300 + seed * 64 + i, *ids[1:]] for i, ids in enumerate(prompt_ids(batch))]
            results = engine.generate(input_ids=prompts, sampling_params=params)
            return sum(result["meta_info"]["completion_tokens"] for result in results)

        return measure(generate, batches)


def run_hf_generate(checkpoint: str, batches: Sequence[int], tokens: int) -> dict[int, float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def generate(batch: int, seed: int) -> int:
        del seed
        ids = torch.tensor(prompt_ids(batch))
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return (output.shape[1] - ids.shape[1]) * batch

    return measure(generate, batches)


def measure(generate: Any, batches: Sequence[int]) -> dict[int, float]:
    """Tokens per second at each batch size: the best of three runs after one to warm up."""
    speeds = {}
    for batch in batches:
        generate(batch, 0)
        best = 0.0
        for seed in (1, 2, 3):
            start = time.perf_counter()
            count = generate(batch, seed)
            best = max(best, count / (time.perf_counter() - start))
        speeds[batch] = best
    return speeds


def wait_until_healthy(port: int, process: subprocess.Popen[str], limit: float) -> None:
    deadline = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {limit:g} s")
        time.sleep(0.2)


@contextlib.contextmanager
def server(command: list[str], log: Path, port: int) -> Iterator[None]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
    try:
        wait_until_healthy(port, process, 400)
        yield
    finally:
        terminate_process(process)


def run_server(side: str, checkpoint: str, batches: Sequence[int], tokens: int) -> dict[int, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if side == "palladio-server":
        command = [sys.executable, "-m", "palladio.launch_server", "--model-path", checkpoint]
        command += ["--dtype", "float32", "--max-running-requests", str(max(batches)), "--served-model-name", "*"]
        extra: dict[str, Any] = {}
    else:
        program = Path(sys.executable).with_name("transformers")
        command = [str(program), "serve", checkpoint, "--continuous-batching", "--dtype", "float32", "--device", "cpu"]
        extra = {"ignore_eos": None}  # unknown there; random weights hardly ever end by themselves
    command += ["--host", "127.0.0.1", "--port", str(port)]
    target = Target(f"http://127.0.0.1:{port}/v1", checkpoint, "chat", extra)
    speeds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with server(command, log, port):
                for batch in batches:
                    workload = Workload(f"batch {batch}", batch, tokens, PROMPT_TOKENS, concurrency=batch)
                    results = [asyncio.run(run_workload(target, workload, 200, seed)) for seed in range(4)][1:]
                    good = [result["tokens_per_second"] for result in results if not result["failures"]]
                    if not good:
                        raise RuntimeError("; ".join(results[0]["errors"]))
                    speeds[batch] = max(good)
        except (RuntimeError, TimeoutError) as error:
            print(log.read_text()[-2000:], file=sys.stderr)
            raise SystemExit(f"{side}: {error}") from error
    return speeds


def run_side(side: str, checkpoint: str, batches: Sequence[int], tokens: int) -> dict[int, float]:
    match side:
        case "palladio-engine":
            return run_palladio_engine(checkpoint, batches, tokens)
        case "hf-generate":
            return run_hf_generate(checkpoint, batches, tokens)
        case _:
            return run_server(side, checkpoint, batches, tokens)


def run_in_process(side: str, checkpoint: Path, args: argparse.Namespace, tokens: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, "--checkpoint", str(checkpoint), "--tokens", str(tokens)]
    command += ["--batches", *map(str, args.batches)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=args.limit)
    except subprocess.TimeoutExpired:
        terminate_process(process)
        return {"error": f"not done after {args.limit:g} s"}
    if process.returncode:
        return {"error": (errors.strip().splitlines() or ["?"])[-1][:300]}
    return {"tokens_per_second": {int(batch): speed for batch, speed in json.loads(output.splitlines()[-1]).items()}}


def show(report: dict[str, Any], batches: Sequence[int]) -> None:
    for model, sides in report["models"].items():
        print(f"\n{model}: tokens/s" + "".join(f"{f'batch {batch}':>12}" for batch in batches))
        for side, result in sides.items():
            speeds = result.get("tokens_per_second", {})
            cells = "".join(f"{speeds[batch]:>12.1f}" if batch in speeds else f"{'-':>12}" for batch in batches)
            print(f"  {side:<20}{cells}  {result.get('error', '')}")
        for ours, theirs in PAIRS:
            a, b = (sides.get(side, {}).get("tokens_per_second", {}) for side in (ours, theirs))
            cells = "".join(f"{a[n] / b[n]:>11.2f}x" if n in a and n in b else f"{'-':>12}" for n in batches)
            print(f"  {'ratio to ' + theirs:<20}{cells}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=tuple(NEW_TOKENS), default=("tiny", "0.5b"))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 16))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one side may take")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "palladio", help="for checkpoints")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.side:
        print(json.dumps(run_side(args.side, args.checkpoint, args.batches, args.tokens)))
        return 0
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "dtype": "float32",
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "models": {},
    }
    for model in args.models:
        checkpoint = make_checkpoint(model, args.cache)
        report["models"][model] = {}
        for side in args.sides:
            print(f"{model}: {side} …", file=sys.stderr, flush=True)
            report["models"][model][side] = run_in_process(side, checkpoint, args, NEW_TOKENS[model])
    show(report, args.batches)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
