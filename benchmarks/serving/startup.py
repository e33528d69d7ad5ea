"""Seconds from the launch command to the first answer and to all programs, by where the programs come from.

    python benchmarks/serving/startup.py [--model-path DIR] [--cores 0,1] [--only cold warm] [--json o.json] [-- flags]
    python benchmarks/serving/startup.py --published smollm2 --only rate-1 rate-20

cold: default flags and an empty compilation cache; warm: the same cache again; full, full-warm: --compile full, as
above; exported: `palladio compile --compiled-dir` ran before; streams: --compile background with an empty cache, and
what a stream sees of the compilation behind it, beside what it sees once that is done; streams-full: the same programs
with --compile full, which that should equal; rate-1, rate-20: an empty cache again, and the tokens per second of so
many streams in the first 90 seconds after ready, beside their rate when all programs are there. The first answer is one
token of one request, sent again and again until it is taken. On a machine that others use, CPU seconds say more
than seconds: they are of the front and of the engine together.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.peers.published import NAMES, make_published
from benchmarks.support.report import report
from benchmarks.support.server_process import cpu_seconds_of_tree, free_port, provenance, usage_of_tree
from palladio.utils import terminate_process

STREAM_TOKENS = 1000
RATE_SECONDS = 90  # of which the rate is shown
RATE_WINDOW = 5  # seconds of one figure
RATE_FROM = 15  # seconds after ready, from which on the rate should be near its later one
LATER_SECONDS = 30
RATE_TOKENS = 200  # of each answer
STARTS = ["cold", "warm", "full", "full-warm", "exported", "streams", "streams-full", "rate-1", "rate-20"]


def get(url: str) -> dict[str, Any] | None:
    """The JSON body of a 200 answer ({} if it has none), or None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body = response.read()
            return json.loads(body) if body.startswith(b"{") else {}
    except (urllib.error.URLError, OSError):
        return None


def stream(url: str, num_tokens: int) -> Iterator[float]:
    """The times at which the tokens of one request come."""
    body = {
        "text": "Once upon a time",
        "sampling_params": {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0},
        "stream": True,
    }
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield time.perf_counter()


def gaps(url: str, seconds: float, goes_on: Callable[[], bool]) -> dict[str, float]:
    """Return milliseconds between tokens of consecutive streams, while `goes_on()` holds and for at most `seconds`."""
    deadline, found = time.perf_counter() + seconds, []
    while goes_on() and time.perf_counter() < deadline:
        times = list(stream(url, STREAM_TOKENS))
        found += [1000 * (after - before) for before, after in itertools.pairwise(times)]
    cuts = statistics.quantiles(found, n=1000)
    return {"tokens": len(found), "p50_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998], "max_ms": max(found)}


def token_times(url: str, num_streams: int, seconds: float) -> list[float]:
    """Return the arrival times of the tokens of `num_streams` streams, with one answer after the other in each: seconds
    since the start."""
    start = time.perf_counter()

    def run() -> list[float]:
        times: list[float] = []
        while time.perf_counter() < start + seconds:
            times += stream(url, RATE_TOKENS)
        return times

    with concurrent.futures.ThreadPoolExecutor(num_streams) as pool:
        futures = [pool.submit(run) for _ in range(num_streams)]
        return sorted(moment - start for future in futures for moment in future.result())


def rates(url: str, num_streams: int, limit: float) -> dict[str, Any]:
    """Tokens per second of the first seconds after ready, and of later ones, when all programs are there."""

    def in_span(times: Sequence[float], begin: float, end: float) -> float:
        return round(sum(begin <= moment < end for moment in times) / (end - begin), 1)

    first = token_times(url, num_streams, RATE_SECONDS)
    windows = [in_span(first, begin, begin + RATE_WINDOW) for begin in range(0, RATE_SECONDS, RATE_WINDOW)]
    deadline = time.perf_counter() + limit
    while "done" in (get(f"{url}/ready") or {"done": 0}):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"all programs: not within {limit:g} s")
        time.sleep(0.5)
    later = in_span(token_times(url, num_streams, LATER_SECONDS), 0, LATER_SECONDS)
    early = in_span(first, RATE_FROM, RATE_SECONDS)
    compiled = (get(f"{url}/get_server_info") or {})["internal_states"][0]["compile"]
    return {
        "tokens_per_second": windows,
        f"from_{RATE_FROM}_s": early,
        "later": later,
        "ratio": round(early / later, 2),
        "waited_for_programs_seconds": compiled["wait_seconds"],
    }


def ask(url: str) -> bool:
    """Return whether the server answers a request of one token; no chat, since not each published file has a
    template."""
    body = {"prompt": "Hi", "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def start_once(
    command: Sequence[str], limit: float, *, watches_streams: bool = False, num_streams: int = 0
) -> dict[str, Any]:
    """Starts the server, waits for an answer and for all programs, asks it for its figures, ends it."""
    port, figures = free_port(), dict[str, Any]()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

        def passed(name: str, happened: Callable[[], bool]) -> None:
            while not happened():
                if process.poll() is not None:
                    raise RuntimeError(f"the server exited with code {process.returncode}")
                if time.perf_counter() - start > limit:
                    raise TimeoutError(f"{name}: not within {limit:g} s")
                time.sleep(0.1)
            usage = usage_of_tree(process.pid)
            figures[name] = {
                "seconds": round(time.perf_counter() - start, 2),
                "cpu_seconds": round(cpu_seconds_of_tree(process.pid), 2),
                "resident_mib": usage.rss >> 20,
                "shared_once_mib": usage.pss >> 20,
            }

        try:
            passed("listening", lambda: get(f"{url}/version") is not None)
            if num_streams:
                passed("ready", lambda: get(f"{url}/ready") is not None)
                figures |= rates(url, num_streams, limit)
            passed("first answer", lambda: ask(url))
            if watches_streams:
                figures |= watch(url, start, limit)
            passed("all programs", lambda: "done" not in (get(f"{url}/ready") or {"done": 0}))
            info = get(f"{url}/get_server_info") or {}
        finally:
            terminate_process(process)
        log.seek(0)
        text = log.read()
    programs = info["internal_states"][0]["compile"]["programs"]
    results = [program["result"] for program in programs]
    loaded = re.search(r"Load weight end.* ([0-9.]+) s\.$", text, re.MULTILINE)
    return figures | {
        "weights_seconds": float(loaded.group(1)) if loaded else None,
        "first_programs_seconds": info["compile_seconds"],
        "work_of_programs_seconds": round(sum(program["seconds"] for program in programs), 1),
        "num_programs": len(results),
        **{name: results.count(name) for name in ("miss", "hit", "exported")},
        "device": info["device"],
    }


def import_seconds(module: str) -> float:
    """CPU seconds of a process that imports it and ends."""
    before = os.times()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    after = os.times()
    return round(after.children_user + after.children_system - before.children_user - before.children_system, 2)


def watch(url: str, start: float, limit: float) -> dict[str, Any]:
    """A stream's view of a server that still compiles, and then of the same server when it is done."""

    def compiles() -> bool:
        return "done" in (get(f"{url}/ready") or {})

    during = gaps(url, limit, compiles) if compiles() else None
    done = time.perf_counter() - start
    return {"seconds_to_all_programs": done, "while_compiling": during, "afterwards": gaps(url, 15, lambda: True)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model-path", help="default: the embedded default model")
    model.add_argument("--published", choices=NAMES, help="a model of `make real` in bfloat16; needs torch to be made")
    cache = Path.home() / ".cache" / "palladio"
    parser.add_argument("--cache", type=Path, default=cache, help="of published models (default: %(default)s)")
    parser.add_argument("--cores", help="run everything on these, such as 0,1; default: on all")
    parser.add_argument("--only", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one start may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="more flags of the launch command, after --")
    args = parser.parse_args(argv)
    if args.cores:
        os.sched_setaffinity(0, map(int, args.cores.split(",")))
    if args.published:
        args.model_path = str(make_published(args.published, args.cache, sys.executable)[0])
    flags = [*(["--model-path", args.model_path] if args.model_path else []), *args.flags]
    palladio = [sys.executable, "-m", "palladio"]
    starts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "import_cpu_seconds": {
            "front": import_seconds("palladio.launch_server"),
            "engine": import_seconds("palladio.runtime.core.engine_core"),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        kept, empty = f"{folder}/kept", f"{folder}/empty"
        full, programs = f"{folder}/full", f"{folder}/programs"
        caches: dict[str, Sequence[str]] = {
            "cold": ["--compilation-cache-dir", kept],
            "warm": ["--compilation-cache-dir", kept],
            "full": ["--compile", "full", "--compilation-cache-dir", full],
            "full-warm": ["--compile", "full", "--compilation-cache-dir", full],
            "exported": ["--compiled-dir", programs, "--compilation-cache-dir", empty],
            "streams": ["--compile", "background", "--compilation-cache-dir", f"{folder}/streams"],
            "streams-full": ["--compile", "full", "--compilation-cache-dir", f"{folder}/streams"],
            "rate-1": ["--compilation-cache-dir", f"{folder}/rate-1"],
            "rate-20": ["--compilation-cache-dir", f"{folder}/rate-20"],
        }
        if "exported" in args.only:
            compile_ahead = [*palladio, "compile", *flags, "--compiled-dir", programs]
            subprocess.run(compile_ahead, check=True, stderr=subprocess.DEVNULL, timeout=args.limit)
        for name in args.only:
            command = [*palladio, "serve", *flags, *caches[name]]
            num_streams = int(name.removeprefix("rate-")) if name.startswith("rate-") else 0
            watches = name.startswith("streams")
            starts[name] = start_once(command, args.limit, watches_streams=watches, num_streams=num_streams)
            print(name, json.dumps(starts[name]), flush=True)
    report("serving/startup.py", argv, provenance() | starts, args.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as failure:
        sys.exit(f"error: {failure}")
